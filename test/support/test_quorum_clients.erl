%% Those who use quorum locks while a test does something to their nodes, and write down what they see: for
%% test_quorum_history. Each has a file of its own, to which it adds without a buffer, so what was written is
%% there when its node has been killed.
%%
%% Time is `os:perf_counter/1', CLOCK_MONOTONIC on Linux: the same for all VMs of a machine, in network namespaces or
%% not, and neither the VM nor somebody who sets the wall clock corrects it. (`erlang:monotonic_time/0' begins anew in
%% each VM. The clock of leases goes on while the machine sleeps, which is no fault tried here; between two sleeps
%% they differ by a constant.)
%%
%% There are three kinds. The busy ones fight for a few names, as writers, readers and for several at once, for some
%% milliseconds each, add to the counters of test_quorum_register, and end in all ways. A keeper holds a name
%% that nobody else wants, until it loses it: there is always one that can. The contenders of all nodes want one
%% name, for long: when one is cut off another one inherits it, at the moment when that is most dangerous.
-module(test_quorum_clients).

-export([start/1, stop/0, granted/0, is_kept/0, has_heirloom/1, pass_on/0, start_locks/1, now_ns/0, read/1]).

-export_type([options/0]).

%% `life' tells clients from those of earlier lives of their node. Nobody waits longer for a lock than `lease_ms'
%% and a half, and contenders hold for up to twice of it.
-type options() :: #{
    place := pos_integer(),
    life := pos_integer(),
    folder := file:filename(),
    register := file:filename(),
    busy := pos_integer(),
    lease_ms := pos_integer()
}.

-record(client, {
    kind :: busy | keeper | contender,
    options :: options(),
    file :: file:io_device(),
    register :: test_quorum_register:connection(),
    number = 1 :: pos_integer()
}).

-define(KEEPER, test_quorum_clients).
-define(GRANTED, {?MODULE, granted}).
-define(STEM, "history_").

%% The names that the busy ones fight for: few, so that they do.
-define(HOT, [{hot, Number} || Number <- lists:seq(1, 4)]).
-define(CONTENDED, contended_lock).

%% A fact is written when it has been so for so long: what has been found held since is not known of a node that is
%% killed.
-define(NOTE_NS, 5_000_000).

%% How long a client that is told nothing waits for the news that what it does not hold is lost.
-define(NEWS_MS, 20_000).
-define(STOP_MS, 60_000).

-define(PAUSE_AFTER_REFUSAL_MS, 20).

-spec now_ns() -> integer().
now_ns() ->
    os:perf_counter(nanosecond).

%% The quorum locks of this node, kept by a process of their own.
-spec start_locks(canal_lock_quorum:options()) -> ok.
start_locks(Options) ->
    Caller = self(),
    Ref = make_ref(),
    _ = spawn(fun() ->
        process_flag(trap_exit, true),
        Caller ! {Ref, canal_lock_quorum:start_link(Options)},
        receive
            {'EXIT', _, _} -> ok
        end
    end),
    {ok, _} = test_await:answer(Ref),
    ok.

-spec start(options()) -> ok.
start(Options = #{busy := Busy}) ->
    ok = persistent_term:put(?GRANTED, counters:new(1, [])),
    Caller = self(),
    Ref = make_ref(),
    _ = spawn(fun() ->
        true = register(?KEEPER, self()),
        process_flag(trap_exit, true),
        Kinds = [keeper, contender | lists:duplicate(Busy, busy)],
        Clients = maps:from_list([{new(Kind, Options), Kind} || Kind <- Kinds]),
        Caller ! {Ref, ok},
        keep(Clients, Options)
    end),
    test_await:answer(Ref).

%% Some die of their own will; others take their places.
keep(Clients, Options) ->
    receive
        {'EXIT', Client, died_on_purpose} ->
            {Kind, Others} = maps:take(Client, Clients),
            keep(Others#{new(Kind, Options) => Kind}, Options);
        {stop, From, Ref} ->
            [Client ! stop || Client <- maps:keys(Clients)],
            [receive {'EXIT', Client, Reason} -> ended(Reason) end || Client <- maps:keys(Clients)],
            From ! {Ref, ok}
    end.

ended(normal) -> ok;
ended(died_on_purpose) -> ok.

%% When this returns they have ended.
-spec stop() -> ok.
stop() ->
    Ref = monitor(process, ?KEEPER),
    ?KEEPER ! {stop, self(), Ref},
    receive
        {Ref, ok} -> ok;
        {'DOWN', Ref, process, _, Reason} -> error({clients_died, Reason})
    after ?STOP_MS -> error(clients_do_not_end)
    end.

%% How many locks clients of this node have got.
-spec granted() -> non_neg_integer().
granted() ->
    counters:get(persistent_term:get(?GRANTED), 1).

%% Whether the keeper of this node holds its lock.
-spec is_kept() -> boolean().
is_kept() ->
    [] =/= [kept || #{names := [{kept, _}], held := true} <- canal_lock_quorum_agent:infos()].

%% Whether the contender of this node has what all want, and has got it since then, by this node's wall clock.
-spec has_heirloom(Since_ms :: integer()) -> boolean().
has_heirloom(Since_ms) ->
    [] =/= [got || #{since_ms := When_ms} <- contended(), When_ms > Since_ms].

%% If the contender of this node has it, it gives it back.
-spec pass_on() -> ok.
pass_on() ->
    _ = [Contender ! pass_on || #{holder := Contender} <- contended()],
    ok.

contended() ->
    [Lock || Lock = #{names := [?CONTENDED]} <- canal_lock_quorum_agent:infos()].

new(Kind, Options) ->
    spawn_link(fun() -> begin_client(Kind, Options) end).

begin_client(Kind, Options = #{place := Place, life := Life, folder := Folder, register := Register}) ->
    Id = {Life, Kind, erlang:unique_integer([positive])},
    Path = filename:join(Folder, lists:concat([?STEM, Place, "_", Life, "_", element(3, Id)])),
    {ok, File} = file:open(Path, [append, raw, binary]),
    Client = #client{
        kind = Kind, options = Options, file = File, register = test_quorum_register:connect(Register)
    },
    ok = note({client, {Place, Id}}, Client),
    live(Client).

%%% What they do

live(Client = #client{kind = Kind}) ->
    receive
        stop -> ok
    after rand:uniform(4) - 1 ->
        live(next(turn(Kind, Client)))
    end.

next(Client = #client{number = Number}) ->
    Client#client{number = Number + 1}.

turn(keeper, Client = #client{options = #{place := Place}}) ->
    with_lock(write, [{kept, Place}], Client, fun(Lock) -> hold(Lock, infinity, 1, Client) end);
turn(contender, Client = #client{options = #{lease_ms := Lease_ms}}) ->
    with_lock(write, [?CONTENDED], Client, fun(Lock) -> hold(Lock, rand:uniform(2 * Lease_ms), 1, Client) end);
turn(busy, Client) ->
    case rand:uniform(20) of
        Few when Few =< 6 -> with_lock(read, [one_of(?HOT)], Client, fun(Lock) -> stay(Lock, Client) end);
        Few when Few =< 9 -> with_lock(write, several(), Client, fun(Lock) -> stay(Lock, Client) end);
        _ -> with_lock(write, [one_of(?HOT)], Client, fun(Lock) -> work(Lock, Client) end)
    end.

one_of(List) ->
    lists:nth(rand:uniform(length(List)), List).

several() ->
    Shuffled = [Name || {_, Name} <- lists:sort([{rand:uniform(), Name} || Name <- ?HOT])],
    lists:sublist(Shuffled, 1 + rand:uniform(2)).

%% For a while, sometimes without any pause.
stay(Lock, Client) ->
    hold(Lock, rand:uniform(20), rand:uniform(3) - 1, Client).

work(Lock, Client = #client{register = Register}) ->
    [Name] = canal_lock_quorum_lock:names(Lock),
    _ = test_quorum_register:add_fenced(Register, Name, canal_lock_quorum:fence(Lock)),
    _ = test_quorum_register:add_plain(Register, Name, fun() -> is_held(Lock) end),
    stay(Lock, Client).

with_lock(Mode, Names, Client = #client{number = Number, options = #{lease_ms := Lease_ms}}, Use) ->
    ok = note({asked, now_ns(), Number, Mode, Names}, Client),
    case lock(Mode, Names, rand:uniform(3 * Lease_ms div 2)) of
        {ok, Lock} ->
            ok = note({granted, now_ns(), Number, canal_lock_quorum:fence(Lock)}, Client),
            counters:add(persistent_term:get(?GRANTED), 1, 1),
            finish(Use(Lock), Lock, Client);
        {error, Why} ->
            ok = note({refused, now_ns(), Number, Why}, Client),
            timer:sleep(rand:uniform(?PAUSE_AFTER_REFUSAL_MS)),
            Client
    end.

lock(Mode, Names, Timeout_ms) ->
    try
        case {Mode, Names} of
            {read, [Name]} -> canal_lock_quorum:rlock(Name, Timeout_ms);
            {write, [Name]} -> canal_lock_quorum:lock(Name, Timeout_ms);
            {write, _} -> canal_lock_quorum:lock_many(Names, Timeout_ms)
        end
    catch
        %% A fault has ended the process that answers, or all of them.
        exit:{Reason, {canal_lock_quorum, _, _}} -> {error, {exit, Reason}};
        error:badarg -> {error, not_started}
    end.

%% Looks whether it is held, again and again, for so long.
hold(Lock, For_ms, Pause_ms, Client) ->
    Now = now_ns(),
    Until =
        case For_ms of
            infinity -> infinity;
            _ -> Now + For_ms * 1_000_000
        end,
    look(Lock, Until, Pause_ms, none, Client).

%% `Span': since when, and until when, it was found held without a note of it.
look(Lock, Until, Pause_ms, Span, Client = #client{number = Number}) ->
    Before = now_ns(),
    case is_held(Lock) of
        true when Before > Until ->
            ok = note_held(longer(Before, Span), Client),
            over;
        true ->
            Longer = noted_if_long(longer(Before, Span), Client),
            receive
                {canal_lock_quorum, at_risk, Lock} ->
                    ok = note({at_risk, now_ns(), Number}, Client),
                    look(Lock, Until, Pause_ms, Longer, Client);
                {canal_lock_quorum, lost, Lock} ->
                    ok = note_held(Longer, Client),
                    told_lost(Lock, Client);
                pass_on ->
                    ok = note_held(Longer, Client),
                    over;
                stop ->
                    ok = note_held(Longer, Client),
                    self() ! stop,
                    over
            after Pause_ms -> look(Lock, Until, Pause_ms, Longer, Client)
            end;
        false ->
            ok = note_held(Span, Client),
            ok = note({not_held, Before, now_ns(), Number}, Client),
            wait_for_news(Lock, Client)
    end.

longer(Now, none) -> {Now, Now};
longer(Now, {Since, _}) -> {Since, Now}.

noted_if_long(Span = {Since, Until}, Client) when Until - Since > ?NOTE_NS ->
    ok = note_held(Span, Client),
    none;
noted_if_long(Span, _) ->
    Span.

note_held(none, _) -> ok;
note_held({Since, Until}, Client) -> note({held, Since, Until, Client#client.number}, Client).

wait_for_news(Lock, Client = #client{number = Number}) ->
    receive
        {canal_lock_quorum, at_risk, Lock} ->
            ok = note({at_risk, now_ns(), Number}, Client),
            wait_for_news(Lock, Client);
        {canal_lock_quorum, lost, Lock} ->
            told_lost(Lock, Client)
    after ?NEWS_MS -> lost
    end.

told_lost(Lock, Client = #client{number = Number}) ->
    ok = note({lost, now_ns(), Number}, Client),
    ok = look_once(Lock, Client),
    lost.

%% It should not be held any more.
look_once(Lock, Client = #client{number = Number}) ->
    Before = now_ns(),
    case is_held(Lock) of
        true -> note({held, Before, Before, Number}, Client);
        false -> ok
    end.

%% Where the native library has been told to forget all, nothing is.
is_held(Lock) ->
    try
        canal_lock_quorum:held(Lock)
    catch
        error:badarg -> false
    end.

finish(lost, _, Client) ->
    Client;
finish(over, Lock, Client = #client{kind = Kind, number = Number}) ->
    How =
        case Kind of
            busy -> one_of([unlock, unlock, try_unlock, try_unlock, try_unlock, by_another, death]);
            _ -> one_of([unlock, try_unlock])
        end,
    ok = give_back(How, Lock, Client),
    ok = look_once(Lock, Client),
    receive
        {canal_lock_quorum, lost, Lock} -> note({lost, now_ns(), Number}, Client)
    after 0 -> ok
    end,
    ok = forget_news(Lock),
    Client.

forget_news(Lock) ->
    receive
        {canal_lock_quorum, _, Lock} -> forget_news(Lock);
        %% It was on its way.
        pass_on -> forget_news(Lock)
    after 0 -> ok
    end.

give_back(death, _, Client) ->
    ok = note({dying, now_ns()}, Client),
    exit(died_on_purpose);
give_back(How, Lock, Client = #client{number = Number}) ->
    ok = note({giving, now_ns(), Number, How}, Client),
    Answer = given_back(How, Lock),
    note({given, now_ns(), Number, Answer}, Client).

given_back(by_another, Lock) ->
    {Other, Monitor} = spawn_monitor(fun() -> exit({answer, given_back(unlock, Lock)}) end),
    receive
        {'DOWN', Monitor, process, Other, {answer, Answer}} -> Answer
    end;
given_back(How, Lock) ->
    try
        case How of
            unlock -> canal_lock_quorum:unlock(Lock);
            try_unlock -> canal_lock_quorum:try_unlock(Lock)
        end
    catch
        exit:{Reason, {canal_lock_quorum, _, _}} -> {error, {exit, Reason}};
        error:badarg -> {error, not_started}
    end.

%%% What they write, and who reads it

note(Fact, #client{file = File}) ->
    Bytes = term_to_binary(Fact),
    file:write(File, <<(byte_size(Bytes)):32, Bytes/binary>>).

%% All histories in a folder. A fact that was being written when the node was killed is left out.
-spec read(file:filename()) -> [{test_quorum_history:client(), [test_quorum_history:fact()]}].
read(Folder) ->
    Read = [read_file(Path) || Path <- filelib:wildcard(filename:join(Folder, ?STEM "*"))],
    [{Client, Facts} || [{client, Client} | Facts] <- Read].

read_file(Path) ->
    {ok, Bytes} = file:read_file(Path),
    facts(Bytes).

facts(<<Size:32, Fact:Size/binary, Rest/binary>>) -> [binary_to_term(Fact) | facts(Rest)];
facts(_) -> [].
