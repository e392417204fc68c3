%% Captures the output of a fun with a temporary group leader.
-module(router_demo_output).

-export([capture/1]).

%% Returns the result of the fun and its output.
-spec capture(fun(() -> Result)) -> {Result, Output :: string()}.
capture(Fun) ->
    Leader = spawn_link(fun() -> collect([]) end),
    Before = group_leader(),
    true = group_leader(Leader, self()),
    try
        Result = Fun(),
        Leader ! {get_output, self()},
        receive
            {Leader, Output} -> {Result, Output}
        end
    after
        group_leader(Before, self())
    end.

collect(Output) ->
    receive
        {io_request, From, Reference, Request} ->
            From ! {io_reply, Reference, ok},
            collect([Output, characters(Request)]);
        {get_output, From} ->
            From ! {self(), unicode:characters_to_list(Output)}
    end.

characters({put_chars, _Encoding, Characters}) -> Characters;
characters({put_chars, _Encoding, Module, Function, Arguments}) -> apply(Module, Function, Arguments).
