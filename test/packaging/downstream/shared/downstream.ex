defmodule Downstream do
  # Much longer than the release takes.
  @timeout_ms 10_000

  # Acquires three permits; the fourth acquire is refused until a holder dies. Takes the module of either language.
  def use_library(canal_lock) do
    [{first, monitor}, _, _] = for _ <- 1..3, do: holder(canal_lock)
    :full = canal_lock.acquire(:db, 3, 1)
    Process.exit(first, :kill)

    receive do
      {:DOWN, ^monitor, :process, ^first, :killed} -> :ok
    end

    # The permit may be released some microseconds after the :DOWN message.
    {:acquired, 3} = acquire_until(canal_lock, System.monotonic_time(:millisecond) + @timeout_ms)
    IO.puts("canal_lock: three permits acquired, the fourth refused, and the permit of a dead holder released")
    use_quorum_library()
  end

  # The VM maps the library of the quorum locks when it is first used, even if all modules were loaded at boot. Linux
  # lists the mapped files.
  defp use_quorum_library() do
    {:module, _} = Code.ensure_loaded(:canal_lock_quorum_nif)
    true = mapped?("canal_lock_nif", true)
    false = mapped?("canal_lock_quorum_nif", false)

    case :canal_lock_quorum_nif.load() do
      :ok ->
        true = mapped?("canal_lock_quorum_nif", true)
        IO.puts("canal_lock: the library of the quorum locks loads when it is used")

      {:error, sentences} ->
        IO.puts(sentences)
    end

    :ok
  end

  defp mapped?(library, default) do
    case File.read("/proc/self/maps") do
      {:ok, maps} -> String.contains?(maps, "/#{library}.so")
      {:error, :enoent} -> default
    end
  end

  defp holder(canal_lock) do
    parent = self()

    {holder, monitor} =
      spawn_monitor(fn ->
        send(parent, {self(), canal_lock.acquire(:db, 3, 1)})

        receive do
          :stop -> :ok
        end
      end)

    receive do
      {^holder, {:acquired, _}} -> {holder, monitor}
      {^holder, answer} -> exit({:not_acquired, answer})
      {:DOWN, ^monitor, :process, ^holder, reason} -> exit(reason)
    end
  end

  defp acquire_until(canal_lock, deadline_ms) do
    case canal_lock.acquire(:db, 3, 1) do
      :full ->
        true = System.monotonic_time(:millisecond) < deadline_ms
        true = :erlang.yield()
        acquire_until(canal_lock, deadline_ms)

      acquired ->
        acquired
    end
  end
end
