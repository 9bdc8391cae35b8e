//! Commands: the edge between the server and a handler, and their registration with all that COMMAND INFO, COMMAND DOCS and
//! ACLs show.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{mem, ptr};

use redis_module::raw;

use super::load::LoadError;
use super::{Args, Context, api, log, reply};
use crate::error::Error;
use crate::manual::{Access, Arg, Keys, Manual};
use crate::reply::Reply;
use crate::stats;

/// The ACL category of the module's commands, where the server has categories of modules (Redis 7.4, Valkey 8.0).
pub(super) const CATEGORY: &CStr = c"ratelimit";

/// The version that introduced the commands.
const SINCE: &CStr = c"0.1.0";

/// A command: its manual entry and its handler.
pub(crate) trait Command {
    const MANUAL: Manual;

    /// Carries out a call. It replies nothing itself; what it returns is sent.
    fn call(ctx: &Context, args: &Args<'_>) -> Result<Reply, Error>;
}

/// What the server calls. A panic ends here: handlers compute on copies and write last, so the key is as it was.
unsafe extern "C" fn enter<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes the context and the arguments of this call, which last until it returns.
    let (ctx, args) = unsafe { (Context::new(ctx), Args::new(argv, argc)) };
    let result = catch_unwind(AssertUnwindSafe(|| C::call(&ctx, &args)));
    match result {
        Ok(Ok(answer)) => reply::send(&ctx, &answer),
        Ok(Err(error)) => return reject(&ctx, error),
        Err(panic) => return rescue(&ctx, panic),
    }
    raw::REDISMODULE_OK as c_int
}

#[cold]
fn reject(ctx: &Context, error: Error) -> c_int {
    if !matches!(error, Error::WrongType | Error::OutOfMemory | Error::Internal) {
        stats::count(&stats::REJECTED_INPUTS);
    }
    reply::send_error(ctx, error)
}

#[cold]
fn rescue(ctx: &Context, panic: Box<dyn std::any::Any + Send>) -> c_int {
    // A payload whose destructor panics would get past this edge.
    mem::forget(panic);
    log::warning(ctx, c"the call was answered with an error; the key is unchanged");
    reply::send_error(ctx, Error::Internal)
}

/// Registers a command. Called while the module loads.
pub(crate) fn register<C: Command>(ctx: &Context) -> Result<(), LoadError> {
    let manual = C::MANUAL;
    let (first, last, step) = match manual.keys {
        Keys::First => (1, 1, 1),
        Keys::Every(step) => (1, -1, step),
    };
    // SAFETY: the names are NUL-terminated; the server copies them. `enter` lives as long as the module.
    let command = unsafe {
        let created = api!(RedisModule_CreateCommand)(
            ctx.raw(),
            manual.name.as_ptr(),
            Some(enter::<C>),
            manual.flags.as_ptr(),
            first,
            last,
            step,
        );
        if created != raw::REDISMODULE_OK as c_int {
            return Err(LoadError(c"cannot create a command: is another module of the same commands loaded?"));
        }
        api!(RedisModule_GetCommand)(ctx.raw(), manual.name.as_ptr())
    };
    if command.is_null() {
        return Err(LoadError(c"cannot find a command that was just created"));
    }
    describe(command, &manual, (last, step))?;
    categorise(command, &manual)
}

fn describe(
    command: *mut raw::RedisModuleCommand,
    manual: &Manual,
    (last, step): (c_int, c_int),
) -> Result<(), LoadError> {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let access = match manual.access {
        Access::Reads => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        Access::Updates => {
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE
        }
    };
    // SAFETY: for these C structs all zeroes is a valid value: null pointers and zero numbers; it also ends an array.
    let (mut key_specs, mut info): ([raw::RedisModuleCommandKeySpec; 2], raw::RedisModuleCommandInfo) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let [spec, _end] = &mut key_specs;
    spec.flags = access.into();
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index = raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 };
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    // Here, unlike above, the last key counts from the first.
    let lastkey = if last > 0 { 0 } else { last };
    spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey, keystep: step, limit: 0 };

    let mut nested = Vec::new();
    let mut args = args(manual.args, &mut nested);
    info.version = &raw const version;
    info.summary = manual.summary.as_ptr();
    info.complexity = manual.complexity.as_ptr();
    info.since = SINCE.as_ptr();
    info.arity = manual.arity;
    info.key_specs = key_specs.as_mut_ptr();
    info.args = args.as_mut_ptr();
    // SAFETY: everything that `info` points to lives until the call returns; the server copies it.
    if unsafe { api!(RedisModule_SetCommandInfo)(command, &raw const info) } == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err(LoadError(c"the server refuses a command's description"))
    }
}

/// Arguments as the server takes them, ended by an empty one. Groups are kept alive in `nested`.
fn args(of: &[Arg], nested: &mut Vec<Vec<raw::RedisModuleCommandArg>>) -> Vec<raw::RedisModuleCommandArg> {
    use raw::{
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK as BLOCK,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE as DOUBLE,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY as KEY,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING as STRING,
    };
    let mut args: Vec<_> = of
        .iter()
        .map(|arg| {
            let (name, kind, flags) = match arg {
                Arg::Key => (c"key", KEY, raw::REDISMODULE_CMD_ARG_NONE),
                Arg::Number(name) => (*name, DOUBLE, raw::REDISMODULE_CMD_ARG_NONE),
                Arg::Text(name) => (*name, STRING, raw::REDISMODULE_CMD_ARG_NONE),
                Arg::Optional(name) => (*name, DOUBLE, raw::REDISMODULE_CMD_ARG_OPTIONAL),
                Arg::Repeated(name, _) => (*name, BLOCK, raw::REDISMODULE_CMD_ARG_MULTIPLE),
            };
            let subargs = match arg {
                Arg::Repeated(_, group) => {
                    let mut group = self::args(group, nested);
                    // A Vec's elements stay where they are when the Vec itself is moved.
                    let subargs = group.as_mut_ptr();
                    nested.push(group);
                    subargs
                }
                _ => ptr::null_mut(),
            };
            let key_spec_index = if matches!(arg, Arg::Key) { 0 } else { -1 };
            arg_of(name, kind, key_spec_index, flags.cast_signed(), subargs)
        })
        .collect();
    // SAFETY: all zeroes is a valid value, see `describe`.
    args.push(unsafe { mem::zeroed() });
    args
}

fn arg_of(
    name: &'static CStr,
    kind: raw::RedisModuleCommandArgType,
    key_spec_index: c_int,
    flags: c_int,
    subargs: *mut raw::RedisModuleCommandArg,
) -> raw::RedisModuleCommandArg {
    let none: *const c_char = ptr::null();
    raw::RedisModuleCommandArg {
        name: name.as_ptr(),
        type_: kind,
        key_spec_index,
        token: none,
        summary: none,
        since: none,
        flags,
        deprecated_since: none,
        subargs,
        display_text: none,
    }
}

/// Puts a command into its ACL categories, as far as the server lets a module do that.
fn categorise(command: *mut raw::RedisModuleCommand, manual: &Manual) -> Result<(), LoadError> {
    // SAFETY: the pointers are read by value.
    let (set, own) = unsafe { (raw::RedisModule_SetCommandACLCategories, raw::RedisModule_AddACLCategory) };
    let Some(set) = set else {
        return Ok(());
    };
    let mut categories = manual.categories.to_bytes().to_vec();
    if own.is_some() {
        categories.push(b' ');
        categories.extend_from_slice(CATEGORY.to_bytes());
    }
    categories.push(0);
    // SAFETY: the text ends with a NUL; the server copies what it needs.
    if unsafe { set(command, categories.as_ptr().cast()) } == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err(LoadError(c"the server refuses a command's ACL categories"))
    }
}

/// Adds the module's own ACL category, before the commands that are put into it.
pub(super) fn add_category(ctx: &Context) -> Result<(), LoadError> {
    // SAFETY: the pointer is read by value; the name is NUL-terminated and copied.
    let added = unsafe { raw::RedisModule_AddACLCategory.map(|add| add(ctx.raw(), CATEGORY.as_ptr())) };
    match added {
        // A category outlives the module that added it, so after MODULE UNLOAD and LOAD it is there already.
        None => Ok(()),
        Some(status) if status == raw::REDISMODULE_OK as c_int => Ok(()),
        Some(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY) => Ok(()),
        Some(_) => Err(LoadError(c"the server refuses the ACL category 'ratelimit'")),
    }
}
