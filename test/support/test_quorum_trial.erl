%% A trial of quorum locks: nodes in a laboratory, clients that use the locks, and one fault after the other. Each
%% fault is brought about, seen, ended, and followed until all nodes get locks again. In the end everything has to be
%% empty, what clients have written down must be possible, and what the locks protect must not have lost anything.
-module(test_quorum_trial).

-export([run/2, short/0, real/0]).

%% What faults are made of.
-export([begin_lives/2, start_locks/2, recovery/4, recovered/4, lost_at/3, must_lose/3, bound_ms/2, rule/2]).
-export([now_ns/0, ns/1, ms/1, news_ms/0]).

-export_type([setting/0, run/0, rules/0]).

-import(test_quorum_lab, [call/3, places/1]).

-type rules() :: #{atom() => pos_integer()}.

%% `enough': before it ends, clients have got so many locks since their nodes were started, and added so often to what
%% the locks protect.
-type setting() :: #{
    nodes := pos_integer(),
    rules := rules(),
    enough => #{granted := non_neg_integer(), adds := non_neg_integer()},
    kind => namespaces | wires,
    clocks => boolean(),
    arguments => [string()]
}.

-type run() :: #{lab := test_quorum_lab:lab(), rules := rules(), register := file:filename()}.

-type known() :: test_quorum_history:known().
-type place() :: test_quorum_lab:place().

%% How much may be beside the lease until a holder has heard that its lock is lost.
-define(NEWS_MS, 1000).

%% For what takes time when nodes come back: connections that are made anew, processes that wait their turn.
-define(SLACK_MS, 5000).

-define(BUSY_CLIENTS, 3).

%% The constants of clusters, and such that a test does not take long.
-spec real() -> #{atom() => pos_integer()}.
real() ->
    #{
        heartbeat_ms => 2000,
        holder_lease_ms => 8000,
        voter_lease_ms => 10_000,
        quarantine_ms => 10_000,
        attempt_ms => 1000,
        retry_most_ms => 1000,
        wait_ms => 3000,
        at_risk_ms => 4000
    }.

-spec short() -> #{atom() => pos_integer()}.
short() ->
    #{
        heartbeat_ms => 200,
        holder_lease_ms => 800,
        voter_lease_ms => 1000,
        quarantine_ms => 1000,
        attempt_ms => 100,
        retry_most_ms => 100,
        wait_ms => 300,
        at_risk_ms => 400
    }.

%% A net for what hangs.
-define(ENOUGH_MS, 60_000).

%% What was seen of each fault, how much there was of all, and what is wrong.
-spec run(setting(), [test_quorum_faults:fault()]) ->
    #{
        seen := [{test_quorum_faults:fault(), string()}],
        counts := #{atom() => non_neg_integer()},
        wrong := [{Promise :: atom(), Why :: term()}]
    }.
run(Setting = #{nodes := Nodes}, Faults) ->
    Lab = test_quorum_lab:start(maps:merge(maps:with([kind, clocks, arguments], Setting), #{nodes => Nodes})),
    Folder = test_quorum_lab:folder(Lab),
    Path = filename:join(Folder, "register"),
    Register = test_quorum_register:start(Path),
    try
        Run = #{lab => Lab, rules => maps:get(rules, Setting), register => Path},
        begin_lives(Run, places(Lab)),
        {_, Start} = recovery(Run, places(Lab), now_ns(), bound_ms(0, Run)),
        Brought = [{Fault, test_quorum_faults:bring_about(Fault, Run)} || Fault <- Faults],
        await_enough(maps:get(enough, Setting, #{granted => 0, adds => 0}), Register, Run),
        Left = end_lives(Run),
        Clients = test_quorum_clients:read(Folder),
        Known = Start ++ lists:append([Its || {_, {_, Its}} <- Brought]) ++ Left,
        History = #{clients => Clients, known => Known},
        Protected = #{lost := Lost} = test_quorum_register:result(Register),
        #{
            seen => [{Fault, Seen} || {Fault, {Seen, _}} <- Brought],
            counts => maps:merge(test_quorum_history:counts(History), maps:remove(lost, Protected)),
            wrong => test_quorum_history:violations(History) ++ lost(Lost, Protected, Faults, Run)
        }
    after
        test_quorum_register:stop(Register),
        test_quorum_lab:stop(Lab)
    end.

%% A counter without fences is right only if nobody was kept for long between looking whether the lock is held and
%% writing: stopped, or behind others on a busy machine. Then the lock cannot help, and only the fence does.
lost(Lost, #{slowest_ms := Slowest_ms}, Faults, #{rules := Rules}) ->
    #{voter_lease_ms := Voter_ms, holder_lease_ms := Holder_ms} = Rules,
    Pauses = Slowest_ms > (Voter_ms - Holder_ms) div 2,
    AtOnce = [Fault || Fault <- Faults, test_quorum_faults:passes_on_at_once(Fault)],
    [{nothing_lost, What} || What <- Lost, element(1, What) =:= fenced orelse (not Pauses andalso AtOnce =:= [])].

%% On nodes that have none: the locks, and clients.
-spec begin_lives(run(), [place()]) -> ok.
begin_lives(Run = #{lab := Lab, register := Register}, Places) ->
    [start_locks(Place, Run) || Place <- Places],
    Clients = #{
        life => erlang:unique_integer([positive]),
        folder => test_quorum_lab:folder(Lab),
        register => Register,
        busy => ?BUSY_CLIENTS,
        lease_ms => rule(voter_lease_ms, Run)
    },
    [call(Lab, Place, fun() -> test_quorum_clients:start(Clients#{place => Place}) end) || Place <- Places],
    ok.

await_enough(#{granted := Granted, adds := Adds}, Register, Run = #{lab := Lab}) ->
    IsEnough = fun() ->
        #{adds := Added} = test_quorum_register:result(Register),
        Added >= Adds andalso lists:sum([granted(Run, Place) || Place <- places(Lab)]) >= Granted
    end,
    test_await:value(true, IsEnough, ?ENOUGH_MS).

%% What is there when nobody uses the locks any more, and everybody has had time to hear of it.
end_lives(Run = #{lab := Lab}) ->
    [call(Lab, Place, fun test_quorum_clients:stop/0) || Place <- places(Lab)],
    Until = now_ns() + ns(bound_ms(0, Run)),
    [{left, Place, left(Lab, Place, Until)} || Place <- places(Lab)].

left(Lab, Place, Until) ->
    case {call(Lab, Place, fun left_here/0), now_ns() > Until} of
        {[], _} ->
            [];
        {Left, true} ->
            Left;
        {_, false} ->
            timer:sleep(10),
            left(Lab, Place, Until)
    end.

left_here() ->
    #{held := Held, waiting := Waiting, pending_unlocks := Pending} = canal_lock_quorum:status(),
    #{voting := IsVoting, empty := IsEmpty} = canal_lock_quorum_voter:state(),
    [What || {What, true} <- [
        {{held, Held}, Held > 0}, {{waiting, Waiting}, Waiting > 0}, {{pending_unlocks, Pending}, Pending > 0},
        {does_not_vote, not IsVoting}, {voter_is_not_empty, not IsEmpty}
    ]].

-spec start_locks(place(), run()) -> ok.
start_locks(Place, #{lab := Lab, rules := Rules}) ->
    Options = #{
        members => test_quorum_lab:names(Lab),
        rules => Rules,
        fence_file => filename:join(test_quorum_lab:folder(Lab), lists:concat(["fences_", Place]))
    },
    call(Lab, Place, fun() -> test_quorum_clients:start_locks(Options) end).

%% Until clients of all these nodes have got something; and by when that should be.
-spec recovery(run(), [place()], From_ns :: integer(), Within_ms :: integer()) -> {Took_ms :: integer(), [known()]}.
recovery(Run, Places, From, Within_ms) ->
    Before = [{Place, granted(Run, Place)} || Place <- Places],
    %% If it takes longer, that is judged from the history.
    Until = From + 3 * ns(Within_ms),
    [wait_for_more(Run, Place, Granted, Until) || {Place, Granted} <- Before],
    {ms(now_ns() - From), [{recovers, Place, From, From + ns(Within_ms)} || Place <- Places]}.

wait_for_more(Run, Place, Granted, Until) ->
    case granted(Run, Place) > Granted orelse now_ns() > Until of
        true ->
            ok;
        false ->
            timer:sleep(5),
            wait_for_more(Run, Place, Granted, Until)
    end.

granted(#{lab := Lab}, Place) ->
    call(Lab, Place, fun test_quorum_clients:granted/0).

%% After a fault of such a length. Also says how long it took.
-spec recovered(run(), [place()], From_ns :: integer(), Fault_ms :: integer()) -> {Seen :: string(), [known()]}.
recovered(Run, Places, From, Fault_ms) ->
    {Took_ms, Known} = recovery(Run, Places, From, bound_ms(Fault_ms, Run)),
    {lists:concat(["locks everywhere after ", Took_ms, " ms"]), Known}.

%% How many locks clients there were told to have lost since.
-spec lost_at(run(), place(), Since_ns :: integer()) -> non_neg_integer().
lost_at(#{lab := Lab}, Place, Since) ->
    length([
        Number
     || {{At, _}, Facts} <- test_quorum_clients:read(test_quorum_lab:folder(Lab)),
        At =:= Place,
        {lost, When, Number} <- Facts,
        When > Since
    ]).

%% What there was at a place has been lost by the end of its lease, and a second more.
-spec must_lose(place(), Since_ns :: integer(), run()) -> known().
must_lose(Place, Since, Run) ->
    {must_lose, Place, Since, Since + ns(rule(holder_lease_ms, Run) + ?NEWS_MS)}.

%% How long a cluster may take after a fault of such a length: leases run out, voters wait, and TCP, which has waited
%% longer and longer, sends again.
-spec bound_ms(Fault_ms :: integer(), run()) -> integer().
bound_ms(Fault_ms, Run) ->
    rule(voter_lease_ms, Run) + rule(quarantine_ms, Run) + 2 * Fault_ms + ?SLACK_MS.

-spec rule(atom(), run()) -> pos_integer().
rule(Name, #{rules := Rules}) ->
    maps:get(Name, Rules).

-spec now_ns() -> integer().
now_ns() ->
    test_quorum_clients:now_ns().

-spec ns(integer()) -> integer().
ns(Ms) -> Ms * 1_000_000.

-spec ms(integer()) -> integer().
ms(Ns) -> Ns div 1_000_000.

-spec news_ms() -> pos_integer().
news_ms() ->
    ?NEWS_MS.
