# Not a dependency of the library. A failed test shows what was logged while it ran.
{:ok, _} = Application.ensure_all_started(:logger)
ExUnit.start(capture_log: true)
# Each test starts a table of its own.
ExUnit.CaptureLog.capture_log(fn -> :ok = Application.stop(:canal_lock) end)
