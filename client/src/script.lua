-- The token bucket for servers that cannot load the module: the same arguments, answers and errors, computed exactly.
-- KEYS holds one key a bucket. ARGV holds the command's name, then its arguments without the keys. A bucket is a hash
-- of
-- `tokens`, a decimal, and `last_refill`, microseconds since the epoch.
--
-- A Lua number is a double, exact below 2^53. So an amount is two of them, whole tokens and trillionths, and what may
-- grow beyond 2^53 is computed on decimal digits.

local floor, format, match, rep, sub = math.floor, string.format, string.match, string.rep, string.sub
local EXACT = 2 ^ 53
local TOKEN = 1e12

local function fail(text)
  error({ err = text })
end

local MALFORMED = 'not a decimal number'
local OUT_OF_RANGE = 'out of range'
local TOO_SMALL = 'above zero but too small'
local TOO_PRECISE = 'more than 18 significant digits'

local function refuse(name, why)
  if why == OUT_OF_RANGE or why == TOO_SMALL then
    local range = '0 to 1e15 tokens, in steps of 1e-9'
    if name == 'rate' then range = '0, or 1e-18 to 1e12 tokens per second; TOKENS/SECONDS needs SECONDS above 0' end
    if name == 'want' or name == 'least' then range = '1 to 1e15 whole tokens' end
    why = why .. ' (' .. range .. ')'
  end
  fail('ERR invalid ' .. name .. ': ' .. why)
end

-- a * b / c, rounded down, and whether nothing was left over; numbers as decimal digits, c not zero.
local function multiply_divide(a, b, c)
  -- Lists of seven digits each, the lowest first: a product of two limbs is exact.
  local BASE = 1e7
  local function trim(n)
    for i = #n, 1, -1 do
      if n[i] ~= 0 then break end
      n[i] = nil
    end
    return n
  end
  local function limbs(digits)
    local n = {}
    for last = #digits, 1, -7 do n[#n + 1] = tonumber(sub(digits, last > 7 and last - 6 or 1, last)) end
    return trim(n)
  end
  local function times(x, y)
    local n = {}
    for i = 1, #x + #y do n[i] = 0 end
    for i = 1, #x do
      local carry = 0
      for j = 1, #y do
        local sum = n[i + j - 1] + x[i] * y[j] + carry
        carry = floor(sum / BASE)
        n[i + j - 1] = sum - carry * BASE
      end
      n[i + #y] = carry
    end
    return trim(n)
  end
  local function below(x, y)
    if #x ~= #y then return #x < #y end
    for i = #x, 1, -1 do
      if x[i] ~= y[i] then return x[i] < y[i] end
    end
    return false
  end
  local function minus(x, y)
    local n, borrow = {}, 0
    for i = 1, #x do
      local rest = x[i] - (y[i] or 0) - borrow
      borrow = rest < 0 and 1 or 0
      n[i] = rest + borrow * BASE
    end
    return trim(n)
  end
  local dividend, divisor = times(limbs(a), limbs(b)), limbs(c)
  local size, quotient, rest = #divisor, {}, {}
  local function head(n) return ((n[size] or 0) * BASE + (n[size - 1] or 0)) * BASE + (n[size - 2] or 0) end
  for i = #dividend, 1, -1 do
    table.insert(rest, 1, dividend[i])
    trim(rest)
    -- The highest limbs tell the next limb of the quotient, or one too many or too few.
    local guess = floor(((rest[size + 1] or 0) * BASE ^ 3 + head(rest)) / head(divisor))
    local product = times(divisor, { guess })
    while below(rest, product) do
      guess, product = guess - 1, minus(product, divisor)
    end
    rest = minus(rest, product)
    while not below(rest, divisor) do
      guess, rest = guess + 1, minus(rest, divisor)
    end
    quotient[#quotient + 1] = format('%07.0f', guess)
  end
  return match(table.concat(quotient), '^0*(.*)$'), #rest == 0
end

-- Numbers as callers write them --------------------------------------------------------------------------------------

-- The significant digits of a decimal and the power of ten that they count; no digits for zero.
local function decimal(name, text)
  local mantissa, exponent = match(text, '^([%d.]+)[eE]([+-]?%d+)$')
  local before, after = match(mantissa or text, '^(%d*)%.?(%d*)$')
  if not before or #before + #after == 0 then refuse(name, MALFORMED) end
  return match(before .. after, '^0*(.*)$'), tonumber(exponent or 0) - #after
end

-- An amount, rounded to billionths of a token, ties to even.
local function amount(name, text)
  if #text <= 15 and match(text, '^%d+$') then return { whole = tonumber(text), part = 0 } end
  local digits, exponent = decimal(name, text)
  if digits == '' then return { whole = 0, part = 0 } end
  local integral = #digits + exponent
  if integral > 16 or integral == 16 and not match(digits, '^10*$') then refuse(name, OUT_OF_RANGE) end
  local kept = integral + 9
  if kept < 0 then refuse(name, TOO_SMALL) end
  local nanos, rest = sub(digits, 1, kept) .. rep('0', kept - #digits), sub(digits, kept + 1)
  local whole, part = tonumber(sub(nanos, 1, -10)) or 0, (tonumber(sub(nanos, -9)) or 0) * 1000
  if rest >= '5' and (not match(rest, '^50*$') or match(nanos, '[13579]$')) then part = part + 1000 end
  if part == TOKEN then whole, part = whole + 1, 0 end
  if whole + part == 0 then refuse(name, TOO_SMALL) end
  return { whole = whole, part = part }
end

local function whole_amount(name, text)
  local number = amount(name, text)
  return number.part == 0 and number or refuse(name, 'a lease counts whole tokens')
end

-- A capacity and a rate. The rate is a ratio, so many trillionths of a token in so many microseconds: the nearest
-- doubles, and the digits for where a double is not enough.
local function quota_of(capacity, text)
  local quota = { capacity = amount('capacity', capacity) }
  if #text <= 9 and match(text, '^%d+$') then
    quota.units_digits, quota.micros_digits = text .. '000000', '1'
  else
    local over, under = match(text, '^([^/]*)/(.*)$')
    local function side(digits, exponent)
      if over then
        if string.find(digits, '[1-9]', 19) then refuse('rate', TOO_PRECISE) end
        if math.abs(exponent) >= 2 ^ 49 then refuse('rate', OUT_OF_RANGE) end
      end
      return sub(digits, 1, 18), exponent + math.max(#digits - 18, 0)
    end
    local tokens, exponent = side(decimal('rate', over or text))
    local seconds, scale = side(decimal('rate', under or '1'))
    if seconds == '' then refuse('rate', OUT_OF_RANGE) end
    local shift = tokens == '' and 0 or exponent - scale + 6
    if shift > 38 then refuse('rate', OUT_OF_RANGE) end
    if shift < -38 then refuse('rate', TOO_SMALL) end
    quota.units_digits, quota.micros_digits = tokens .. rep('0', shift), seconds .. rep('0', -shift)
  end
  local units, micros = tonumber(quota.units_digits) or 0, tonumber(quota.micros_digits)
  local speed = units / micros
  -- 1e12 tokens a second and 1e-18, compared exactly where they are near.
  if speed > 9e17 then
    local most, exact = multiply_divide(quota.units_digits, '1', quota.micros_digits)
    if #most > 19 or #most == 19 and (most > '1' .. rep('0', 18) or not exact) then refuse('rate', OUT_OF_RANGE) end
  elseif units > 0 and speed < 2e-12 then
    local least = multiply_divide(quota.units_digits, '1' .. rep('0', 12), quota.micros_digits)
    if least == '' then refuse('rate', TOO_SMALL) end
  end
  quota.units, quota.micros = units, micros
  -- Of what comes back in a microsecond: whole millionths of a token, trillionths beside them, and parts of a
  -- trillionth.
  local each = floor(units / micros)
  quota.millionths = floor(each / 1e6)
  quota.trillionths, quota.parts = each - quota.millionths * 1e6, units - each * micros
  return quota
end

-- The bucket ---------------------------------------------------------------------------------------------------------
-- A balance is whole tokens, below zero for a debt, and the trillionths above them.

local MOST = 1e15
local NOT_A_BUCKET = 'WRONGTYPE Operation against a key holding a value that is not a token bucket'

local function plus(a, b)
  local whole, part = a.whole + b.whole, a.part + b.part
  if part >= TOKEN then whole, part = whole + 1, part - TOKEN end
  return { whole = whole, part = part }
end

local function minus(a, b)
  local whole, part = a.whole - b.whole, a.part - b.part
  if part < 0 then whole, part = whole - 1, part + TOKEN end
  return { whole = whole, part = part }
end

local function below(a, b)
  return a.whole < b.whole or a.whole == b.whole and a.part < b.part
end

local function digits_of(a)
  return format('%.0f%012.0f', a.whole, a.part)
end

local function to_text(balance)
  local sign, whole, part = '', balance.whole, balance.part
  if whole < 0 then
    sign, whole, part = '-', -whole, -part
    if part < 0 then whole, part = whole - 1, part + TOKEN end
  end
  local text = sign .. format('%.0f', whole)
  return part == 0 and text or text .. '.' .. match(format('%012.0f', part), '^(.-)0*$')
end

-- The balance stored under a key and its stamp; nothing if there is none.
local function load(key)
  local hash = redis.call('HGETALL', key)
  if #hash == 0 then return nil end
  local fields = #hash == 4 and { [hash[1]] = hash[2], [hash[3]] = hash[4] } or {}
  local sign, before, after = match(fields.tokens or '', '^(%-?)(%d+)%.?(%d*)$')
  local stamp = match(fields.last_refill or '', '^%d+$')
  if not stamp or #stamp > 16 or not before or #before > 16 or #after > 12 then fail(NOT_A_BUCKET) end
  local whole, part = tonumber(before), after ~= '' and tonumber(after .. rep('0', 12 - #after)) or 0
  if whole > MOST or whole == MOST and part > 0 then fail(NOT_A_BUCKET) end
  if sign == '-' then
    whole, part = -whole, -part
    if part < 0 then whole, part = whole - 1, part + TOKEN end
  end
  return { whole = whole, part = part }, tonumber(stamp)
end

local now

-- What comes back in so many microseconds, and whether no part of a trillionth was dropped.
local function gain(quota, elapsed)
  local millionths, parts = elapsed * quota.millionths, elapsed * quota.parts
  -- A quotient of two doubles below 2^53 does not reach the next whole number by rounding.
  local carried = floor(parts / quota.micros)
  local trillionths = elapsed * quota.trillionths + carried
  if elapsed * quota.units < EXACT or quota.units < EXACT and math.max(millionths, trillionths, parts) < EXACT then
    local whole, above = floor(millionths / 1e6), floor(trillionths / TOKEN)
    local part = (millionths - whole * 1e6) * 1e6 + trillionths - above * TOKEN
    local gained = { whole = whole + above, part = part }
    if part >= TOKEN then gained.whole, gained.part = gained.whole + 1, part - TOKEN end
    return gained, carried * quota.micros == parts
  end
  local units, exact = multiply_divide(format('%.0f', elapsed), quota.units_digits, quota.micros_digits)
  return { whole = tonumber(sub(units, 1, -13)) or 0, part = tonumber(sub(units, -12)) or 0 }, exact
end

-- The bucket as a call finds it: `base` at `stamp` is what is stored, `balance` what has become of it by now.
local function open(key, quota)
  local base, stamp = load(key)
  local bucket = { key = key, quota = quota, exists = base ~= nil, base = base or quota.capacity, stamp = stamp or now }
  if bucket.stamp > now then
    -- A stamp ahead of the clock by more than a whole refill cannot be true.
    local refill, exact = gain(quota, bucket.stamp - now)
    if below(quota.capacity, refill) or not exact and not below(refill, quota.capacity) then
      bucket.stamp, bucket.moved = now, true
    end
  end
  bucket.balance = plus(bucket.base, (gain(quota, math.max(now - bucket.stamp, 0))))
  if below(quota.capacity, bucket.balance) then bucket.balance = quota.capacity end
  return bucket
end

-- The greatest common divisor, of numbers that are exact.
local function divisor(a, b)
  while b > 0 and a < EXACT do a, b = b, a % b end
  return a < EXACT and a or 1
end

local LONGEST = '9223372036854775807'

-- Milliseconds until a balance at a stamp will have become a cost that it lacks; as digits from 2^53 on.
local function retry(quota, cost, balance, stamp)
  if below(quota.capacity, cost) or quota.units == 0 then return -1 end
  local lack = minus(cost, balance)
  local common = divisor(quota.units, quota.micros)
  local units, product = quota.units / common, (lack.whole * TOKEN + lack.part) * (quota.micros / common)
  if product < EXACT and quota.units < EXACT then
    local micros = floor(product / units)
    if micros * units < product then micros = micros + 1 end
    if micros < EXACT / 4 then return math.max(math.ceil((micros + stamp - now) / 1000), 1) end
  end
  local micros, exact = multiply_divide(digits_of(lack), quota.micros_digits, quota.units_digits)
  if #micros > 22 then return LONGEST end
  local high, low = tonumber(sub(micros, 1, -16)) or 0, tonumber(sub(micros, -15)) or 0
  low = low + (exact and 0 or 1) + stamp - now
  local carry = floor(low / 1e15)
  local millis = math.ceil((low - carry * 1e15) / 1000)
  high = high + carry + floor(millis / 1e12)
  millis = millis % 1e12
  if high * 1e12 + millis < EXACT then return math.max(high * 1e12 + millis, 1) end
  local text = format('%.0f%012.0f', high, millis)
  return (#text > 19 or #text == 19 and text > LONGEST) and LONGEST or text
end

-- When a bucket will be full, in milliseconds since the epoch; nil for never, and for later than the module can tell.
local function full_at(quota, balance, stamp)
  if quota.units == 0 then return nil end
  local lack = minus(quota.capacity, balance)
  local micros = (lack.whole * TOKEN + lack.part) * quota.micros / quota.units
  local millis = math.ceil((stamp + math.max(micros, 0)) / 1000) + 1
  return millis < 2 ^ 42 and millis or nil
end

-- How long a key outlives the moment when its bucket is full, in milliseconds.
local SLACK = 1000

local function expire(key, full)
  if full then
    redis.call('PEXPIREAT', key, format('%.0f', full + SLACK))
  else
    redis.call('PERSIST', key)
  end
end

local function store(bucket, balance, stamp)
  redis.call('HSET', bucket.key, 'tokens', to_text(balance), 'last_refill', format('%.0f', stamp))
  expire(bucket.key, full_at(bucket.quota, balance, stamp))
end

-- Stores a balance that a call has changed.
local function settle(bucket, balance)
  store(bucket, balance, math.max(bucket.stamp, now))
end

-- What a call that changes nothing still puts right: a stamp that cannot be true, an expiry before the bucket is full.
local function correct(bucket)
  if bucket.moved then return store(bucket, bucket.base, bucket.stamp) end
  if not bucket.exists or not below(bucket.balance, bucket.quota.capacity) then return end
  local deadline = redis.call('PEXPIRETIME', bucket.key)
  local full = full_at(bucket.quota, bucket.base, bucket.stamp)
  if deadline >= 0 and deadline < (full or EXACT) then expire(bucket.key, full) end
end

-- The commands -------------------------------------------------------------------------------------------------------

local function tokens(balance)
  return math.max(balance.whole, 0)
end

local function peek(bucket, cost)
  local lacks = below(bucket.balance, cost)
  local wait = lacks and retry(bucket.quota, cost, bucket.base, bucket.stamp) or 0
  return { lacks and 0 or 1, tokens(bucket.balance), wait }
end

local function take(bucket, cost)
  if cost.whole + cost.part == 0 or below(bucket.balance, cost) then
    correct(bucket)
    return peek(bucket, cost)
  end
  local left = minus(bucket.balance, cost)
  settle(bucket, left)
  return { 1, tokens(left), 0 }
end

local function refund(bucket, given)
  local balance = plus(bucket.balance, given)
  if below(bucket.quota.capacity, balance) then balance = bucket.quota.capacity end
  if bucket.exists then settle(bucket, balance) end
  return { 1, tokens(balance), 0 }
end

local function debit(bucket, cost)
  local balance = minus(bucket.balance, cost)
  if balance.whole < -MOST then refuse('cost', 'the debt would be above 1e15 tokens') end
  if bucket.exists or cost.whole + cost.part > 0 then settle(bucket, balance) end
  if balance.whole >= 0 then return { 1, tokens(balance), 0 } end
  return { 0, 0, retry(bucket.quota, { whole = 0, part = 0 }, balance, math.max(bucket.stamp, now)) }
end

local function lease(bucket, want, least)
  local granted = { whole = math.min(tokens(bucket.balance), want.whole), part = 0 }
  if below(granted, least) then
    correct(bucket)
    return { 0, tokens(bucket.balance), retry(bucket.quota, least, bucket.base, bucket.stamp) }
  end
  local left = minus(bucket.balance, granted)
  settle(bucket, left)
  return { granted.whole, tokens(left), 0 }
end

local function mtake()
  local buckets, costs, seen, all, twice = {}, {}, {}, true, false
  for i, key in ipairs(KEYS) do
    buckets[i] = quota_of(ARGV[3 * i - 1], ARGV[3 * i])
    costs[i] = amount('cost', ARGV[3 * i + 1])
    twice, seen[key] = twice or seen[key], true
  end
  if twice then fail('ERR the same key is named twice') end
  for i, key in ipairs(KEYS) do
    buckets[i] = open(key, buckets[i])
    all = all and not below(buckets[i].balance, costs[i])
  end
  local verdict, each, longest = { all and 1 or 0, EXACT, 0 }, {}, ''
  for i, bucket in ipairs(buckets) do
    if not all then correct(bucket) end
    each[i] = (all and take or peek)(bucket, costs[i])
    verdict[2] = math.min(verdict[2], each[i][2])
    -- Integers and digits in one order, with never, which is -1, behind all of them.
    local digits = type(each[i][3]) == 'string' and each[i][3] or format('%.0f', each[i][3])
    local rank = digits == '-1' and 'never' or rep('0', 19 - #digits) .. digits
    if rank > longest then longest, verdict[3] = rank, each[i][3] end
  end
  verdict[4] = each
  return verdict
end

local function state(key)
  local balance, stamp = load(key)
  if not balance then return false end
  local ttl = redis.call('PTTL', key)
  redis.setresp(3)
  return { map = { tokens = to_text(balance), last_refill_us = stamp, ttl_ms = ttl } }
end

-- Refuses a call with fewer or more arguments a key.
local function expect(fewest, most)
  local name, given = ARGV[1], #ARGV - 1
  local keys = name == 'TB.MTAKE' and #KEYS or 1
  if keys == 0 or #KEYS ~= keys or given < fewest * keys or given > most * keys then
    fail("ERR wrong number of arguments for '" .. string.lower(name) .. "' command")
  end
end

local function run()
  local name = ARGV[1]
  if name == 'TB.TAKE' or name == 'TB.PEEK' then
    expect(2, 3)
  elseif name == 'TB.LEASE' then
    expect(3, 4)
  elseif name == 'TB.STATE' then
    expect(0, 0)
  else
    expect(3, 3)
  end
  if name == 'TB.STATE' then return state(KEYS[1]) end
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
  if name == 'TB.MTAKE' then return mtake() end
  local quota = quota_of(ARGV[2], ARGV[3])
  if name == 'TB.LEASE' then
    local want, least = whole_amount('want', ARGV[4]), whole_amount('least', ARGV[5] or '1')
    if want.whole == 0 then refuse('want', OUT_OF_RANGE) end
    if least.whole == 0 or below(want, least) then refuse('least', 'needs 1 <= least <= want') end
    return lease(open(KEYS[1], quota), want, least)
  end
  local cost = amount(name == 'TB.REFUND' and 'amount' or 'cost', ARGV[4] or '1')
  local bucket = open(KEYS[1], quota)
  if name == 'TB.TAKE' then return take(bucket, cost) end
  if name == 'TB.PEEK' then return peek(bucket, cost) end
  return (name == 'TB.REFUND' and refund or debit)(bucket, cost)
end

local done, answer = pcall(run)
if done then return answer end
-- Refused, by us or by the server. Some servers hand on the error as it was, others only its text.
return type(answer) == 'table' and answer or redis.error_reply(answer)
