-- For wrk: sends the next request immediately after an answer, and after a pause of 5 to 15 ms after a refusal.

local pause_ms = 0

function delay()
  return pause_ms
end

function response(status)
  if status == 503 then pause_ms = math.random(5, 15) else pause_ms = 0 end
end
