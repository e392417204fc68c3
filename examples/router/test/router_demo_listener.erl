%% A group leader that keeps what is written.
-module(router_demo_listener).

-export([listen/1]).

%% What comes of a fun, and what it has written.
-spec listen(fun(() -> Result)) -> {Result, Said :: string()}.
listen(Fun) ->
    Listener = spawn_link(fun() -> written([]) end),
    Before = group_leader(),
    true = group_leader(Listener, self()),
    try
        Result = Fun(),
        Listener ! {told, self()},
        receive
            {Listener, Said} -> {Result, Said}
        end
    after
        group_leader(Before, self())
    end.

written(Said) ->
    receive
        {io_request, From, Reference, Request} ->
            From ! {io_reply, Reference, ok},
            written([Said, characters(Request)]);
        {told, From} ->
            From ! {self(), unicode:characters_to_list(Said)}
    end.

characters({put_chars, _Encoding, Characters}) -> Characters;
characters({put_chars, _Encoding, Module, Function, Arguments}) -> apply(Module, Function, Arguments).
