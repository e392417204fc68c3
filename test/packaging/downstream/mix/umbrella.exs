defmodule Umbrella.MixProject do
  use Mix.Project

  def project do
    [apps_path: "apps", version: "1.0.0", deps: []]
  end
end
