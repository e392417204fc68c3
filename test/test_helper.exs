# Not a dependency of the library. The tests have it catch what they make supervisors report.
{:ok, _} = Application.ensure_all_started(:logger)
ExUnit.start()
# Each test starts a table of its own.
ExUnit.CaptureLog.capture_log(fn -> :ok = Application.stop(:canal_lock) end)
