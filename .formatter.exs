[inputs: ["{.formatter,mix}.exs", "{examples,lib,test}/**/*.{ex,exs}"], line_length: 120]
