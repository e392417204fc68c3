%% @private
%% Draws the pictures of `canal_lock:top/1' until a line of input comes.
%%
%% The calling process does all the work, so no process is left behind. It requests a line from the group leader by the
%% Erlang I/O protocol. The answer is a message, so the process can draw while it waits. A request for a line cannot be
%% withdrawn. So it is sent after everything that may raise, and later errors of the table are shown, not raised.
-module(canal_lock_top).

-include("canal_lock_errors.hrl").

-export([run/1]).

%% A snapshot may take at most one part in this many of the time, mainly of one dirty scheduler. So a table with
%% hundreds of thousands of keys in use gets fewer pictures than requested.
-define(PARTS_OF_TIME, 4).

%% The size of a screen that does not report its size.
-define(COLUMNS, 80).
-define(ROWS, 24).

%% The height of output that is not a terminal: more rows than any picture has.
-define(ENDLESS, (1 bsl 60)).

%% About this many characters of a term are formatted before it is cut to the line.
-define(CHARACTERS, 250).

%% Columns of a number and of its heading.
-define(CELL, 13).

%% OTP records the initial call of a process in its dictionary. Reading it copies the dictionary, which is a part of the
%% heap. A heap of this size is copied in less than 1 ms.
-define(MAX_HEAP_WORDS, 100_000).

%% For a call to the node of the group leader.
-define(TIMEOUT_MS, 5000).

-record(view, {
    interval_ms :: pos_integer(),
    rows :: pos_integer(),
    show :: fun((term()) -> unicode:chardata()),
    leader :: pid(),
    %% Monitors the leader. The request for a line uses the same reference.
    monitor :: reference(),
    %% On a terminal, each picture replaces the one before.
    is_terminal :: boolean(),
    encoding :: unicode | latin1
}).

%% One reading of the table, and how long it took.
-record(snapshot, {
    at :: integer(),
    info :: canal_lock:info(),
    keys :: [{canal_lock:key(), Permits :: pos_integer()}],
    holders :: [{pid(), Permits :: pos_integer(), Keys :: pos_integer()}],
    queues :: [{canal_lock:key(), Waiting :: pos_integer(), Longest_ms :: non_neg_integer()}],
    took_ms :: non_neg_integer()
}).

%% Or why the table could not be read.
-type snapshot() :: #snapshot{} | {failed, binary()}.

%% The least `rows' tuples of a stream. Between two sorts, up to as many again that are less than `last', the greatest
%% of the tuples kept at the last sort.
-record(best, {
    rows :: pos_integer(),
    count = 0 :: non_neg_integer(),
    kept = [] :: [tuple()],
    last = none :: none | tuple()
}).

-spec run(canal_lock:view_options()) -> ok.
run(Options) ->
    #{interval_ms := Interval_ms, rows := Rows} = All = maps:merge(#{interval_ms => 1000, rows => 10}, Options),
    First = read_table(Rows),
    Leader = group_leader(),
    View = #view{
        interval_ms = Interval_ms,
        rows = Rows,
        show = maps:get(show, All, fun short/1),
        leader = Leader,
        monitor = monitor(process, Leader),
        is_terminal = is_terminal(Leader),
        encoding = encoding(Leader)
    },
    try
        draw_first(First, View)
    after
        demonitor(View#view.monitor, [flush])
    end.

%% Without a terminal the first picture comes after one interval, with rates.
draw_first(First, View = #view{leader = Leader, monitor = Monitor, is_terminal = IsTerminal}) ->
    _ = [draw(none, First, View) || IsTerminal],
    case has_input(View) of
        true ->
            Leader ! {io_request, self(), Monitor, {get_line, unicode, ""}},
            draw_until_input(first, First, View);
        false ->
            draw_last(First, View)
    end.

draw_until_input(Which, Last, View = #view{monitor = Monitor}) ->
    receive
        {io_reply, Monitor, NoLine} when Which =:= first, not is_list(NoLine), not is_binary(NoLine) ->
            draw_last(Last, View);
        {io_reply, Monitor, _} ->
            ok;
        {'DOWN', Monitor, process, _, _} ->
            ok
    after pause_ms(Last, View) -> draw_until_input(further, read_and_draw(Last, View), View)
    end.

%% Without input the next picture is the last one.
draw_last(Last, View = #view{monitor = Monitor}) ->
    receive
        {'DOWN', Monitor, process, _, _} -> ok
    after pause_ms(Last, View) ->
        _ = read_and_draw(Last, View),
        ok
    end.

%% From the end of one snapshot to the beginning of the next.
-spec pause_ms(snapshot(), #view{}) -> pos_integer().
pause_ms({failed, _}, #view{interval_ms = Interval_ms}) ->
    Interval_ms;
pause_ms(#snapshot{took_ms = Took_ms}, #view{interval_ms = Interval_ms}) ->
    max(Interval_ms, (?PARTS_OF_TIME - 1) * Took_ms).

read_and_draw(Last, View = #view{rows = Rows}) ->
    Next =
        case ?CAUGHT(read_table(Rows)) of
            {raise, Cause} -> {failed, canal_lock_errors:explain(Cause)};
            Snapshot -> Snapshot
        end,
    draw(Last, Next, View),
    Next.

%%% Reading

read_table(Rows) ->
    Info = canal_lock_nif:info(),
    At = erlang:monotonic_time(),
    Keys = canal_lock_view:fold_keys(fun add_keys/2, #best{rows = Rows}),
    Holders = add_holder(canal_lock_view:fold_permits(fun add_holders/2, {none, #best{rows = Rows}})),
    Queues = canal_lock_view:fold_queues(fun add_queues/2, #best{rows = Rows}),
    #snapshot{
        at = At,
        info = Info,
        keys = [{Key, -Negative} || {Negative, Key} <- ranked(Keys)],
        holders = [{Pid, -Negative, Count} || {Negative, Pid, Count} <- ranked(Holders)],
        queues = [{Key, -Negative, Longest_ms} || {Negative, Key, Longest_ms} <- ranked(Queues)],
        took_ms = erlang:convert_time_unit(erlang:monotonic_time() - At, native, millisecond)
    }.

%% Most permits first. Equal ones are in the order of terms, so their rows do not change between pictures.
add_keys(Piece, Best) ->
    lists:foldl(fun({Key, Permits}, Before) -> add({-Permits, Key}, Before) end, Best, Piece).

%% The permits of a holder are consecutive, but can be split over two pieces. So the last holder of a piece is not added
%% until the next one begins.
add_holders([{Pid, _Key, Permits} | Rest], {{Pid, Sum, Count}, Best}) ->
    add_holders(Rest, {{Pid, Sum + Permits, Count + 1}, Best});
add_holders([{Pid, _Key, Permits} | Rest], Before) ->
    add_holders(Rest, {{Pid, Permits, 1}, add_holder(Before)});
add_holders([], Before) ->
    Before.

add_holder({none, Best}) -> Best;
add_holder({{Pid, Sum, Count}, Best}) -> add({-Sum, Pid, Count}, Best).

add_queues(Piece, Best) ->
    Add = fun({Key, Waiting, _Pid, Longest_ms}, Before) -> add({-Waiting, Key, Longest_ms}, Before) end,
    lists:foldl(Add, Best, Piece).

add(New, Best = #best{rows = Rows, count = Count, kept = Kept, last = Last}) when Last =:= none; New < Last ->
    case Best#best{count = Count + 1, kept = [New | Kept]} of
        #best{count = Enough} = More when Enough >= 2 * Rows -> sorted(More);
        More -> More
    end;
add(_, Best) ->
    Best.

sorted(Best = #best{rows = Rows}) ->
    Kept = ranked(Best),
    Best#best{count = Rows, kept = Kept, last = lists:last(Kept)}.

ranked(#best{rows = Rows, kept = Kept}) ->
    lists:sublist(lists:sort(Kept), Rows).

%%% Drawing

draw(Last, Next, View = #view{leader = Leader, is_terminal = true}) ->
    Picture = picture(Last, Next, View, measure(fun io:rows/1, Leader, ?ROWS) - 1),
    %% Cursor home; each line replaces the old one; the rest of the screen is cleared.
    write(Leader, ["\e[H", [[Line, "\e[K\n"] || Line <- Picture], "\e[J"]);
draw(Last, Next, View = #view{leader = Leader, is_terminal = false}) ->
    write(Leader, [[[Line, $\n] || Line <- picture(Last, Next, View, ?ENDLESS)], $\n]).

%% If the leader has died, the 'DOWN' message ends the call.
write(Leader, Text) ->
    try
        io:put_chars(Leader, Text)
    catch
        error:terminated -> ok
    end.

%% The last column stays free, because terminals differ in where the cursor goes after it.
picture(Last, Next, View = #view{leader = Leader, encoding = Encoding}, Space) ->
    Columns = measure(fun io:columns/1, Leader, ?COLUMNS) - 1,
    Shown = lists:sublist([title(View) | lines(Last, Next, View, Space)], max(0, Space)),
    [canal_lock_text:fit(Line, max(0, Columns), Encoding) || Line <- Shown].

title(#view{is_terminal = IsTerminal}) ->
    {Hour, Minute, Second} = erlang:time(),
    End = ["; Enter ends this" || IsTerminal],
    Manager = ["; no manager runs" || whereis(canal_lock) =:= undefined],
    io_lib:format("canal_lock on ~ts, ~2..0b:~2..0b:~2..0b~ts~ts", [node(), Hour, Minute, Second, Manager, End]).

lines(_Last, {failed, Sentence}, _View, _Space) ->
    [Sentence];
lines(Last, Next = #snapshot{info = Info}, View, Space) ->
    Head = head(Info, rates(Last, Next)),
    Sections = sections(Next, View),
    %% The title is one line. A section has an empty line and a heading.
    Free = max(0, Space - 1 - length(Head) - 2 * length(Sections)),
    Shares = shares(Free, [length(Elements) || {_, Elements, _} <- Sections]),
    Head ++
        lists:append([
            ["", Heading | [Row(Element) || Element <- lists:sublist(Elements, Share)]]
         || {{Heading, Elements, Row}, Share} <- lists:zip(Sections, Shares)
        ]).

%% The line above each list, its elements, and how they are shown.
sections(#snapshot{keys = Keys, holders = Holders, queues = Queues}, View) ->
    [
        {[cells(["permits"]), "  key"], Keys, fun({Key, Permits}) ->
            [cells([Permits]), "  ", shown(Key, View)]
        end},
        {[cells(["permits", "keys"]), "  holder"], Holders, fun({Pid, Permits, Count}) ->
            [cells([Permits, Count]), "  ", described(Pid, View)]
        end}
    ] ++
        [
            {[cells(["waiting", "longest wait"]), "  key"], Queues, fun({Key, Waiting, Longest_ms}) ->
                [cells([Waiting, duration(Longest_ms)]), "  ", shown(Key, View)]
            end}
         || Queues =/= []
        ].

head(Info = #{keys := Keys, permits := Permits, holders := Holders, memory := Bytes}, Rates) ->
    #{not_held := NotHeld, waiting := Waiting, handed_over := HandedOver, timed_out := TimedOut} = Info,
    Shown = fun(Names) -> cells([maps:get(Name, Rates, "-") || Name <- Names]) end,
    [
        cells(["keys", "permits", "holders", "memory"]),
        cells([Keys, Permits, Holders, bytes(Bytes)]),
        %% The last one only if there was a release by a process that did not hold the key.
        cells(["granted/s", "refused/s", "released/s", "by death/s"] ++ ["not held/s" || NotHeld > 0]),
        Shown([granted, refused, released, released_by_death] ++ [not_held || NotHeld > 0])
    ] ++
        lists:append([
            [
                cells(["waiting", "hand-overs/s", "timeouts/s"]),
                [cells([Waiting]), Shown([handed_over, timed_out])]
            ]
         || Waiting + HandedOver + TimedOut > 0
        ]).

%% Rates per second since the last snapshot. Unknown without a last snapshot, or if the table was replaced, which shows
%% as a counter that has decreased. Within one table only `granted' can decrease.
rates(#snapshot{at = Before, info = Less}, #snapshot{at = Now, info = Info}) when Now > Before ->
    Seconds = (Now - Before) / erlang:convert_time_unit(1, second, native),
    Names = [granted, refused, released, released_by_death, not_held, handed_over, timed_out],
    Differences = [{Name, maps:get(Name, Info) - maps:get(Name, Less)} || Name <- Names],
    case [Name || {Name, Difference} <- Differences, Difference < 0, Name =/= granted] of
        [] -> maps:from_list([{Name, rate(max(0, Difference), Seconds)} || {Name, Difference} <- Differences]);
        _ -> #{}
    end;
rates(_, _) ->
    #{}.

rate(0, _) -> "0";
rate(Difference, Seconds) when Difference >= 10 * Seconds -> integer_to_list(round(Difference / Seconds));
rate(Difference, Seconds) -> float_to_list(Difference / Seconds, [{decimals, 1}]).

bytes(Bytes) when Bytes >= 1_000_000_000 -> bytes(Bytes / 1_000_000_000, "GB");
bytes(Bytes) when Bytes >= 1_000_000 -> bytes(Bytes / 1_000_000, "MB");
bytes(Bytes) -> bytes(Bytes / 1000, "kB").

bytes(Number, Unit) ->
    [float_to_list(Number, [{decimals, 1}]), $\s, Unit].

duration(Ms) when Ms >= 1000 -> [float_to_list(Ms / 1000, [{decimals, 1}]), " s"];
duration(Ms) -> [integer_to_list(Ms), " ms"].

%% Numbers and headings, aligned to the right.
cells(Cells) ->
    [cell(Cell) || Cell <- Cells].

cell(Number) when is_integer(Number) -> cell(integer_to_list(Number));
cell(Text) -> [$\s, string:pad(Text, ?CELL - 1, leading)].

%% Divides `Free' rows among lists of these lengths: each list in turn gets one more row, until it needs no more.
shares(Free, Lengths) ->
    Numbered = lists:enumerate(Lengths),
    Turns = lists:sort([{Row, List} || {List, Length} <- Numbered, Row <- lists:seq(1, min(Length, Free))]),
    Given = [List || {_, List} <- lists:sublist(Turns, Free)],
    [length([List || Got <- Given, Got =:= List]) || {List, _} <- Numbered].

described(Pid, View) when node(Pid) =/= node() ->
    [shown(Pid, View), " on ", atom_to_list(node(Pid))];
described(Pid, View) ->
    [shown(Pid, View) | purpose(Pid, View)].

%% What identifies a process: its name, its initial call, or its current function. Empty if it has died.
purpose(Pid, _View) when Pid =:= self() ->
    "  the caller";
purpose(Pid, View) ->
    case process_info(Pid, [registered_name, initial_call, current_function, total_heap_size]) of
        [{_, Name} | _] when is_atom(Name) -> ["  ", shown(Name, View)];
        [_, {_, {proc_lib, _, _}}, _, {_, Words}] when Words =< ?MAX_HEAP_WORDS ->
            ["  ", called(proc_lib:translate_initial_call(Pid), View)];
        [_, {_, {erlang, apply, 2}}, {_, Current = {_, _, _}}, _] -> ["  in ", called(Current, View)];
        [_, {_, Initial}, _, _] -> ["  ", called(Initial, View)];
        undefined -> ""
    end.

called({Module, Function, Arity}, View) ->
    shown(fun Module:Function/Arity, View).

%% The caller's function can fail for some terms.
shown(Term, #view{show = Show}) ->
    try unicode:characters_to_list(Show(Term)) of
        Text when is_list(Text) -> Text;
        _ -> short(Term)
    catch
        _:_ -> short(Term)
    end.

short(Term) ->
    canal_lock_text:short(Term, ?CHARACTERS).

%%% The group leader

%% A terminal reports its size and understands escape sequences.
is_terminal(Leader) ->
    [] =:= [error || Measure <- [fun io:columns/1, fun io:rows/1], measure(Measure, Leader, error) =:= error] andalso
        call_at_leader(Leader, os, getenv, ["TERM"]) =/= "dumb".

%% With `-noinput', the group leader `user' never answers a request for a line.
has_input(#view{leader = Leader, is_terminal = IsTerminal}) ->
    case call_at_leader(Leader, init, get_argument, [noinput]) of
        {ok, _} -> IsTerminal andalso call_at_leader(Leader, erlang, whereis, [user]) =/= Leader;
        _ -> true
    end.

encoding(Leader) ->
    case io:getopts(Leader) of
        {error, _} -> latin1;
        Options -> proplists:get_value(encoding, Options, latin1)
    end.

measure(Measure, Leader, Unknown) ->
    case Measure(Leader) of
        {ok, Count} -> Count;
        {error, _} -> Unknown
    end.

%% Calls a function on the node of the leader, which owns the screen and the input.
call_at_leader(Leader, Module, Function, Arguments) ->
    try
        erpc:call(node(Leader), Module, Function, Arguments, ?TIMEOUT_MS)
    catch
        _:_ -> unknown
    end.
