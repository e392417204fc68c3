%% What the locks protect: a number for each name, kept outside of the nodes, as by a database. It knows nothing of
%% locks. All that it does is to remember the highest fence of a writer that it was shown for a name, and to refuse
%% lower ones.
%%
%% A writer that reads shows its fence, too. Otherwise a late write could come between the reading and the writing of
%% the next holder, and be undone. Who only looks, as a reader does, is not to be late either, but keeps nobody out:
%% that the next writer's fence is higher than a reader's is not promised.
-module(cluster_demo_register).

-export([new/0, handle/3, values/1, log/1]).

-export_type([register/0, request/0, answer/0, entry/0]).

-type name() :: canal_lock_quorum:name().
-type fence() :: non_neg_integer().

-type request() :: {look | read, name(), fence()} | {write, name(), fence(), Value :: integer()}.
-type answer() :: {ok, Value :: integer()} | {refused, Highest :: fence()}.

%% All that was asked, by whom, and what was answered.
-type entry() :: {term(), request(), answer()}.

-opaque register() :: #{numbers := #{name() => {Value :: integer(), Highest :: fence()}}, log := [entry()]}.

-spec new() -> register().
new() ->
    #{numbers => #{}, log => []}.

-spec handle(term(), request(), register()) -> {answer(), register()}.
handle(Who, Request, #{numbers := Numbers, log := Log}) ->
    Name = element(2, Request),
    {Answer, Now} = answer(Request, maps:get(Name, Numbers, {0, 0})),
    {Answer, #{numbers => Numbers#{Name => Now}, log => [{Who, Request, Answer} | Log]}}.

answer(Request, {Value, Highest}) when element(3, Request) < Highest -> {{refused, Highest}, {Value, Highest}};
answer({look, _, _}, {Value, Highest}) -> {{ok, Value}, {Value, Highest}};
answer({read, _, Fence}, {Value, _}) -> {{ok, Value}, {Value, Fence}};
answer({write, _, Fence, Value}, _) -> {{ok, Value}, {Value, Fence}}.

-spec values(register()) -> #{name() => integer()}.
values(#{numbers := Numbers}) ->
    maps:map(fun(_, {Value, _}) -> Value end, Numbers).

%% The first one first.
-spec log(register()) -> [entry()].
log(#{log := Log}) ->
    lists:reverse(Log).
