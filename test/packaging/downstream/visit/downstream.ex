defmodule Downstream do
  # Far more than it takes.
  @patience_ms 10_000

  # Three get in, and the fourth does not, until one of the three has died. By the module of either language.
  def visit(canal_lock) do
    [{first, monitor}, _, _] = for _ <- 1..3, do: holder(canal_lock)
    :full = canal_lock.acquire(:db, 3, 1)
    Process.exit(first, :kill)

    receive do
      {:DOWN, ^monitor, :process, ^first, :killed} -> :ok
    end

    # The permit may be there some microseconds later than the news of the death.
    {:acquired, 3} = admitted(canal_lock, System.monotonic_time(:millisecond) + @patience_ms)
    IO.puts("canal_lock: three got in, a fourth found it full, and the permit of one that died came back")
    ask_for_quorum()
  end

  # The library of the quorum locks comes when it is asked for: it is in no memory before, even if all modules were
  # loaded at boot. What is in memory, Linux tells.
  defp ask_for_quorum() do
    {:module, _} = Code.ensure_loaded(:canal_lock_quorum_nif)
    true = mapped?("canal_lock_nif", true)
    false = mapped?("canal_lock_quorum_nif", false)

    case :canal_lock_quorum_nif.load() do
      :ok ->
        true = mapped?("canal_lock_quorum_nif", true)
        IO.puts("canal_lock: the library of the quorum locks came when it was asked for")

      {:error, sentences} ->
        IO.puts(sentences)
    end

    :ok
  end

  defp mapped?(library, elsewhere) do
    case File.read("/proc/self/maps") do
      {:ok, maps} -> String.contains?(maps, "/#{library}.so")
      {:error, :enoent} -> elsewhere
    end
  end

  defp holder(canal_lock) do
    visitor = self()

    {holder, monitor} =
      spawn_monitor(fn ->
        send(visitor, {self(), canal_lock.acquire(:db, 3, 1)})

        receive do
          :stop -> :ok
        end
      end)

    receive do
      {^holder, {:acquired, _}} -> {holder, monitor}
      {^holder, answer} -> exit({:not_admitted, answer})
      {:DOWN, ^monitor, :process, ^holder, reason} -> exit(reason)
    end
  end

  defp admitted(canal_lock, deadline_ms) do
    case canal_lock.acquire(:db, 3, 1) do
      :full ->
        true = System.monotonic_time(:millisecond) < deadline_ms
        true = :erlang.yield()
        admitted(canal_lock, deadline_ms)

      acquired ->
        acquired
    end
  end
end
