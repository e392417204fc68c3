defmodule CanalLock.View do
  @moduledoc false

  # The options of `CanalLock.top/1` and `CanalLock.Quorum.top/1`, as Erlang takes them. Terms are shown by `inspect/2`.
  @spec options!(keyword) :: map
  def options!(options) do
    rules = :canal_lock_errors.view_options()

    options
    |> CanalLock.Options.validate!([:interval_ms, :rows], "[rows: 20]", &:canal_lock_errors.wrong_option(rules, &1))
    |> Map.put(:show, &show/1)
  end

  # The beginning of a term, as much as a line can show.
  defp show(term) do
    inspect(:canal_lock_text.pruned(term), limit: 30, printable_limit: 250, width: :infinity)
  end
end
