%% @private
%% The pictures of `canal_lock:top/1': the numbers of the table, its busiest keys, holders and queues.
%% canal_lock_screen draws them.
-module(canal_lock_top).

-behaviour(canal_lock_screen).

-include("canal_lock_errors.hrl").

-export([title/0, read/1, explain/1, head/2, sections/2]).

-import(canal_lock_screen, [cells/1, duration/1, described/2]).

%% Columns of the time that a process has held permits.
-define(AGE, 6).

%% One reading of the table.
-type data() :: #{
    info := canal_lock:info(),
    keys := [{canal_lock:key(), Permits :: pos_integer()}],
    holders := [{pid(), Permits :: pos_integer(), Keys :: pos_integer(), Held_ms :: non_neg_integer()}],
    queues := [{canal_lock:key(), Waiting :: pos_integer(), Longest_ms :: non_neg_integer()}]
}.

title() ->
    {"canal_lock", lists:append(["; no manager runs" || whereis(canal_lock) =:= undefined])}.

explain(Cause) ->
    canal_lock_errors:explain(Cause).

%%% Reading

%% Mainly the time of one dirty scheduler.
read(Rows) ->
    ?CAUGHT({read, read_table(Rows)}).

-spec read_table(pos_integer()) -> data().
read_table(Rows) ->
    Info = canal_lock_nif:info(),
    Ranking = canal_lock_ranking:new(Rows),
    Keys = canal_lock_view:fold_keys(fun add_keys/2, Ranking),
    Holders = add_holder(canal_lock_view:fold_permits(fun add_holders/2, {none, Ranking})),
    Queues = canal_lock_view:fold_queues(fun add_queues/2, Ranking),
    #{
        info => Info,
        keys => [{Key, -Negative} || {Negative, Key} <- canal_lock_ranking:least(Keys)],
        holders => [{Pid, -Negative, Count, Ms} || {Negative, Pid, Count, Ms} <- canal_lock_ranking:least(Holders)],
        queues => [{Key, -Negative, Longest_ms} || {Negative, Key, Longest_ms} <- canal_lock_ranking:least(Queues)]
    }.

%% Most permits first. Equal ones are in the order of terms, so their rows do not change between pictures.
add_keys(Piece, Ranking) ->
    lists:foldl(fun({Key, Permits}, Before) -> canal_lock_ranking:add({-Permits, Key}, Before) end, Ranking, Piece).

%% The permits of a holder are consecutive, but can be split over two pieces. So the last holder of a piece is not added
%% until the next one begins.
add_holders([{Pid, _Key, Permits, Held_ms} | Rest], {{Pid, Sum, Count, _}, Ranking}) ->
    add_holders(Rest, {{Pid, Sum + Permits, Count + 1, Held_ms}, Ranking});
add_holders([{Pid, _Key, Permits, Held_ms} | Rest], Before) ->
    add_holders(Rest, {{Pid, Permits, 1, Held_ms}, add_holder(Before)});
add_holders([], Before) ->
    Before.

add_holder({none, Ranking}) -> Ranking;
add_holder({{Pid, Sum, Count, Held_ms}, Ranking}) -> canal_lock_ranking:add({-Sum, Pid, Count, Held_ms}, Ranking).

add_queues(Piece, Ranking) ->
    Add = fun({Key, Waiting, _Pid, Longest_ms}, Before) ->
        canal_lock_ranking:add({-Waiting, Key, Longest_ms}, Before)
    end,
    lists:foldl(Add, Ranking, Piece).

%%% Showing

-spec head(canal_lock_screen:last(), data()) -> [unicode:chardata()].
head(Last, #{info := Info = #{keys := Keys, permits := Permits, holders := Holders, memory := Bytes}}) ->
    #{not_held := NotHeld, waiting := Waiting, handed_over := HandedOver, timed_out := TimedOut} = Info,
    #{longest_wait_us := LongestWait_us} = Info,
    Growth = growth(Last, Info),
    Rates = fun(Names) -> cells([canal_lock_screen:rate(Name, Growth, Last) || Name <- Names]) end,
    [
        cells(["keys", "permits", "holders", "memory"]),
        cells([Keys, Permits, Holders, bytes(Bytes)]),
        %% The last one only if there was a release by a process that did not hold the key.
        cells(["granted/s", "refused/s", "released/s", "by death/s"] ++ ["not held/s" || NotHeld > 0]),
        Rates([granted, refused, released, released_by_death] ++ [not_held || NotHeld > 0])
    ] ++
        lists:append([
            [
                cells(["waiting", "hand-overs/s", "timeouts/s", "average wait", "longest wait"]),
                [
                    cells([Waiting]),
                    Rates([handed_over, timed_out]),
                    cells([average_wait(Growth), duration(LongestWait_us / 1000)])
                ]
            ]
         || Waiting + HandedOver + TimedOut > 0
        ]).

%% Within one table only `granted' can decrease. So another count that does shows that the table was replaced.
growth(none, _) ->
    #{};
growth({#{info := Less = #{granted := Before}}, _}, Info = #{granted := Granted}) ->
    Names = [granted, refused, released, released_by_death, not_held, handed_over, timed_out, wait_us],
    canal_lock_screen:growth(Names, Less#{granted := min(Before, Granted)}, Info).

%% Of the requests that have ended since the previous picture.
average_wait(#{wait_us := Wait_us, handed_over := HandedOver, timed_out := TimedOut}) when HandedOver + TimedOut > 0 ->
    duration(Wait_us / (HandedOver + TimedOut) / 1000);
average_wait(_) ->
    "-".

bytes(Bytes) when Bytes >= 1_000_000_000 -> bytes(Bytes / 1_000_000_000, "GB");
bytes(Bytes) when Bytes >= 1_000_000 -> bytes(Bytes / 1_000_000, "MB");
bytes(Bytes) -> bytes(Bytes / 1000, "kB").

bytes(Number, Unit) ->
    [float_to_list(Number, [{decimals, 1}]), $\s, Unit].

%% Rounded down, as the time itself is.
age(Seconds) when Seconds < 60 -> [integer_to_list(Seconds), "s"];
age(Seconds) when Seconds < 3600 -> [integer_to_list(Seconds div 60), "m"];
age(Seconds) when Seconds < 86_400 -> [integer_to_list(Seconds div 3600), "h"];
age(Seconds) -> [integer_to_list(Seconds div 86_400), "d"].

-spec sections(data(), canal_lock_screen:show()) -> [canal_lock_screen:section()].
sections(#{keys := Keys, holders := Holders, queues := Queues}, Show) ->
    [
        {always, ["permits"], "key", Keys, fun({Key, Permits}) -> {[Permits], Show(Key)} end},
        {always, ["permits", "keys", {"for", ?AGE}], "holder", Holders, fun({Pid, Permits, Count, Held_ms}) ->
            {[Permits, Count, {age(Held_ms div 1000), ?AGE}], described(Pid, Show)}
        end},
        {unless_empty, ["waiting", "longest wait"], "key", Queues, fun({Key, Waiting, Longest_ms}) ->
            {[Waiting, duration(Longest_ms)], Show(Key)}
        end}
    ].
