defmodule CanalLock.Options do
  @moduledoc false

  # Checks a keyword list and returns a map. `wrong_option` returns what `:canal_lock_errors.wrong_option/2` returns.
  @spec validate!(term, [atom], String.t(), (map -> :none | tuple)) :: map
  def validate!(options, names, example, wrong_option) do
    Keyword.keyword?(options) ||
      raise ArgumentError, "the options must be a keyword list such as #{example}, got: #{inspect(options)}"

    options = options |> Keyword.validate!(names) |> Map.new()
    wrong = wrong_option.(options)
    if wrong == :none, do: options, else: raise(ArgumentError, text(wrong))
  end

  defp text({:missing, name, must}), do: "the option #{inspect(name)} is missing; it must #{must}"
  defp text({:wrong, name, must, value}), do: "the option #{inspect(name)} must #{must}, got: #{inspect(value)}"

  # The options of `CanalLock.top/1` and `CanalLock.Quorum.top/1`, as Erlang takes them. Terms are shown by `inspect/2`.
  @spec view!(keyword) :: map
  def view!(options) do
    rules = :canal_lock_errors.view_options()

    options
    |> validate!([:interval_ms, :rows], "[rows: 20]", &:canal_lock_errors.wrong_option(rules, &1))
    |> Map.put(:show, &show/1)
  end

  # The beginning of a term, as much as a line can show.
  defp show(term) do
    inspect(:canal_lock_text.pruned(term), limit: 30, printable_limit: 250, width: :infinity)
  end
end
