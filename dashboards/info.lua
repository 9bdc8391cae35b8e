-- For redis_exporter's -script: the numbers of `INFO tokenbucket`, which it would not read otherwise.
local numbers = {}
for name, number in redis.call('INFO', 'tokenbucket'):gmatch('(tokenbucket_[%w_]+):(%d+%.?%d*)\r') do
  numbers[#numbers + 1] = name
  numbers[#numbers + 1] = number
end
return numbers
