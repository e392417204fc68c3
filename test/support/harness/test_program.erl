%% Runs programs of the operating system.
-module(test_program).

-export([run/2]).

%% Waits until the program ends. The output is that of standard output and standard error. Without a shell, which would
%% need the arguments in its encoding.
-spec run(file:filename(), [string() | binary()]) -> {ExitStatus :: non_neg_integer(), Output :: binary()}.
run(Program, Arguments) ->
    Port = open_port({spawn_executable, Program}, [
        {args, Arguments}, exit_status, stderr_to_stdout, binary, hide
    ]),
    output(Port, []).

output(Port, Output) ->
    receive
        {Port, {data, Data}} -> output(Port, [Output, Data]);
        {Port, {exit_status, Status}} -> {Status, iolist_to_binary(Output)}
    end.
