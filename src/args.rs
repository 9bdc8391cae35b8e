//! Argument bytes to typed values. Whatever is wrong with a call is found here, before a key is opened.

use bucket::{Amount, Quota, Rate};

use crate::error::{Argument, Error};
use crate::server::Args;

/// The quota in the arguments `at` (capacity) and `at + 1` (rate).
#[inline(always)]
pub(crate) fn quota(args: &Args<'_>, at: usize) -> Result<Quota, Error> {
    Ok(Quota { capacity: amount(args, at, Argument::Capacity)?, rate: rate(args, at.saturating_add(1))? })
}

#[inline(always)]
fn rate(args: &Args<'_>, at: usize) -> Result<Rate, Error> {
    Rate::parse(args.bytes(at)?).map_err(|error| Error::Number(Argument::Rate, error))
}

/// The amount in the argument `at`, called `name` in errors.
#[inline(always)]
pub(crate) fn amount(args: &Args<'_>, at: usize, name: Argument) -> Result<Amount, Error> {
    Amount::parse(args.bytes(at)?).map_err(|error| Error::Number(name, error))
}

/// The last argument, a cost that is 1 where it is left out; refuses more arguments.
#[inline(always)]
pub(crate) fn optional_cost(args: &Args<'_>, at: usize) -> Result<Amount, Error> {
    match args.len().checked_sub(at) {
        None | Some(0) => Ok(Amount::ONE),
        Some(1) => amount(args, at, Argument::Cost),
        Some(_) => Err(Error::Arity),
    }
}

/// Whole tokens in the argument `at`.
pub(crate) fn whole(args: &Args<'_>, at: usize, name: Argument) -> Result<Amount, Error> {
    let amount = amount(args, at, name)?;
    if amount.whole().is_some() { Ok(amount) } else { Err(Error::NotWhole(name)) }
}

/// Refuses a call with more than `most` arguments, the command's name included.
#[inline(always)]
pub(crate) fn at_most(args: &Args<'_>, most: usize) -> Result<(), Error> {
    if args.len() > most { Err(Error::Arity) } else { Ok(()) }
}
