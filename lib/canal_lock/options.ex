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
end
