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

  # Options as the map that Erlang takes. What is wrong with them is found by a second, slower check.
  @spec parse!(term, (map -> term), (() -> keyword), String.t()) :: map
  def parse!(options, parse, rules, example) do
    with true <- Keyword.keyword?(options),
         map = Map.new(options),
         true <- map_size(map) == length(options) and parse.(map) != :invalid do
      map
    else
      _ -> validate!(options, Keyword.keys(rules.()), example, &:canal_lock_errors.wrong_option(rules.(), &1))
    end
  end

  # How long a call may wait: a timeout, or options.
  @spec wait!(term, (map -> term), (() -> keyword)) :: timeout | map
  def wait!(wait, parse \\ &:canal_lock_wait.options/1, rules \\ &:canal_lock_errors.wait_options/0)

  def wait!(timeout, _, _) when is_integer(timeout) or timeout == :infinity, do: timeout
  def wait!(options, parse, rules) when is_list(options), do: parse!(options, parse, rules, "[timeout_ms: 5000]")

  def wait!(wrong, _, _) do
    must = "a number of milliseconds, :infinity, or a keyword list such as [timeout_ms: 5000]"
    raise ArgumentError, "the timeout must be #{must}, got: #{inspect(wrong)}"
  end

  # Of a release or a gift.
  @spec permits!(term) :: map
  def permits!(options) do
    parse!(options, &:canal_lock_wait.permits/1, &:canal_lock_errors.permits_options/0, "[permits: 2]")
  end

  # Of the quorum locks.
  @spec quorum!(term) :: map
  def quorum!(options) do
    names = Keyword.keys(:canal_lock_quorum_config.options())
    validate!(options, names, "[members: [node()]]", &:canal_lock_quorum_config.wrong_option/1)
  end

  # The options of `CanalLock.top/1` and of the other modules, as Erlang takes them. Terms are shown by `inspect/2`.
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
