defmodule CanalLock.Options do
  @moduledoc false
  # Keyword lists of options, checked by the rules of the Erlang modules.

  # The options as a map. `wrong_option` answers as `:canal_lock_errors.wrong_option/2` does.
  @spec validate!(term, [atom], String.t(), (map -> :none | tuple)) :: map
  def validate!(options, names, example, wrong_option) do
    Keyword.keyword?(options) ||
      raise ArgumentError, "the options must be a keyword list such as #{example}, got: #{inspect(options)}"

    options = options |> Keyword.validate!(names) |> Map.new()

    case wrong_option.(options) do
      :none ->
        options

      {:missing, name, must} ->
        raise ArgumentError, "the option #{inspect(name)} is missing; it must #{must}"

      {:wrong, name, must, value} ->
        raise ArgumentError, "the option #{inspect(name)} must #{must}, got: #{inspect(value)}"
    end
  end
end
