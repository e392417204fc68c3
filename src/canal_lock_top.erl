%% @private
%% What `canal_lock:top/1' shows: a picture of the table, drawn again and again until somebody ends it.
%%
%% The calling process does all of it. A line is asked of the group leader by its protocol ("The Erlang I/O-protocol"),
%% whose answer is a message, so that the process can wait for it and draw in turns. No other process is there to be
%% left behind. But a question cannot be taken back: it is asked when all that may be refused has been done, and what
%% goes wrong with the table afterwards is shown instead of raised.
-module(canal_lock_top).

-include("canal_lock_errors.hrl").

-export([run/1]).

%% Looking takes one of so many parts of the time at most: of one dirty scheduler mainly. So there are fewer pictures of
%% a table with hundreds of thousands of keys in use than were asked for.
-define(PARTS_OF_TIME, 4).

%% Where nobody says how large the screen is.
-define(COLUMNS, 80).
-define(ROWS, 24).

%% Output that is not a terminal has no height: this is more rows than any picture has.
-define(ENDLESS, (1 bsl 60)).

%% So much of a term is written down, before it is cut to the line.
-define(CHARACTERS, 250).

%% Of a number, or of what stands above it.
-define(CELL, 13).

%% The dictionary of a process, in which OTP notes what it was started for, is copied to be looked at. It is on the
%% heap, and one of so many words is copied in less than a millisecond.
-define(MAX_HEAP_WORDS, 100_000).

%% For the node of the group leader, to say what it shows things on.
-define(TIMEOUT_MS, 5000).

-record(view, {
    interval_ms :: pos_integer(),
    rows :: pos_integer(),
    show :: fun((term()) -> unicode:chardata()),
    leader :: pid(),
    %% Of the leader; its answer comes with the same reference.
    monitor :: reference(),
    %% Where a picture is drawn over the one before.
    is_terminal :: boolean(),
    encoding :: unicode | latin1
}).

%% What was seen at one time, and how long looking took; or what stood in the way.
-record(look, {
    at :: integer(),
    info :: canal_lock:info(),
    keys :: [{canal_lock:key(), Permits :: pos_integer()}],
    holders :: [{pid(), Permits :: pos_integer(), Keys :: pos_integer()}],
    took_ms :: non_neg_integer()
}).

-type look() :: #look{} | {trouble, binary()}.

%% What is least of all that has come by so far, as many as rows; and what has come since they were sorted out, up to as
%% many again, if it is less than the `last' of them.
-record(best, {
    rows :: pos_integer(),
    count = 0 :: non_neg_integer(),
    kept = [] :: [tuple()],
    last = none :: none | tuple()
}).

-spec run(canal_lock:view_options()) -> ok.
run(Options) ->
    #{interval_ms := Interval_ms, rows := Rows} = All = maps:merge(#{interval_ms => 1000, rows => 10}, Options),
    First = look(Rows),
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
        begin_with(First, View)
    after
        demonitor(View#view.monitor, [flush])
    end.

%% Where pictures follow one another, the first one waits until it can be whole, with rates.
begin_with(First, View = #view{leader = Leader, monitor = Monitor, is_terminal = IsTerminal}) ->
    _ = [draw(none, First, View) || IsTerminal],
    case has_input(View) of
        true ->
            Leader ! {io_request, self(), Monitor, {get_line, unicode, ""}},
            go_on(first, First, View);
        false ->
            once_more(First, View)
    end.

go_on(Which, Last, View = #view{monitor = Monitor}) ->
    receive
        {io_reply, Monitor, NoLine} when Which =:= first, not is_list(NoLine), not is_binary(NoLine) ->
            once_more(Last, View);
        {io_reply, Monitor, _} ->
            ok;
        {'DOWN', Monitor, process, _, _} ->
            ok
    after pause_ms(Last, View) -> go_on(further, look_and_draw(Last, View), View)
    end.

%% Nobody is there to end it.
once_more(Last, View = #view{monitor = Monitor}) ->
    receive
        {'DOWN', Monitor, process, _, _} -> ok
    after pause_ms(Last, View) ->
        _ = look_and_draw(Last, View),
        ok
    end.

%% From the end of one look to the beginning of the next.
-spec pause_ms(look(), #view{}) -> pos_integer().
pause_ms({trouble, _}, #view{interval_ms = Interval_ms}) ->
    Interval_ms;
pause_ms(#look{took_ms = Took_ms}, #view{interval_ms = Interval_ms}) ->
    max(Interval_ms, (?PARTS_OF_TIME - 1) * Took_ms).

look_and_draw(Last, View = #view{rows = Rows}) ->
    Look =
        case ?CAUGHT(look(Rows)) of
            {raise, Cause} -> {trouble, canal_lock_errors:explain(Cause)};
            Seen -> Seen
        end,
    draw(Last, Look, View),
    Look.

%%% Looking

look(Rows) ->
    Info = canal_lock_nif:info(),
    At = erlang:monotonic_time(),
    Keys = canal_lock_view:fold_keys(fun add_keys/2, #best{rows = Rows}),
    Holders = add_holder(canal_lock_view:fold_permits(fun add_holders/2, {none, #best{rows = Rows}})),
    #look{
        at = At,
        info = Info,
        keys = [{Key, -Negative} || {Negative, Key} <- ranked(Keys)],
        holders = [{Pid, -Negative, Count} || {Negative, Pid, Count} <- ranked(Holders)],
        took_ms = erlang:convert_time_unit(erlang:monotonic_time() - At, native, millisecond)
    }.

%% Most permits first; among equals, in the order of terms, so that none changes its place without a reason.
add_keys(Piece, Best) ->
    lists:foldl(fun({Key, Permits}, Before) -> add({-Permits, Key}, Before) end, Best, Piece).

%% What one holder has comes in a row, which may go on in the next piece: so the last one is not added before that.
add_holders([{Pid, _Key, Permits} | Rest], {{Pid, Sum, Count}, Best}) ->
    add_holders(Rest, {{Pid, Sum + Permits, Count + 1}, Best});
add_holders([{Pid, _Key, Permits} | Rest], Before) ->
    add_holders(Rest, {{Pid, Permits, 1}, add_holder(Before)});
add_holders([], Before) ->
    Before.

add_holder({none, Best}) -> Best;
add_holder({{Pid, Sum, Count}, Best}) -> add({-Sum, Pid, Count}, Best).

add(New, Best = #best{rows = Rows, count = Count, kept = Kept, last = Last}) when Last =:= none; New < Last ->
    case Best#best{count = Count + 1, kept = [New | Kept]} of
        #best{count = Enough} = More when Enough >= 2 * Rows -> sorted_out(More);
        More -> More
    end;
add(_, Best) ->
    Best.

sorted_out(Best = #best{rows = Rows}) ->
    Kept = ranked(Best),
    Best#best{count = Rows, kept = Kept, last = lists:last(Kept)}.

ranked(#best{rows = Rows, kept = Kept}) ->
    lists:sublist(lists:sort(Kept), Rows).

%%% Drawing

draw(Last, Look, View = #view{leader = Leader, is_terminal = true}) ->
    Picture = picture(Last, Look, View, measure(fun io:rows/1, Leader, ?ROWS) - 1),
    %% Home; each line over what stood there; and nothing below.
    write(Leader, ["\e[H", [[Line, "\e[K\n"] || Line <- Picture], "\e[J"]);
draw(Last, Look, View = #view{leader = Leader, is_terminal = false}) ->
    write(Leader, [[[Line, $\n] || Line <- picture(Last, Look, View, ?ENDLESS)], $\n]).

%% If the leader has gone, the message that says so is on its way.
write(Leader, Text) ->
    try
        io:put_chars(Leader, Text)
    catch
        error:terminated -> ok
    end.

%% The last column stays free: terminals do not agree on where the next character goes.
picture(Last, Look, View = #view{leader = Leader, encoding = Encoding}, Space) ->
    Columns = measure(fun io:columns/1, Leader, ?COLUMNS) - 1,
    Shown = lists:sublist([title(View) | lines(Last, Look, View, Space)], max(0, Space)),
    [canal_lock_text:fit(Line, max(0, Columns), Encoding) || Line <- Shown].

title(#view{is_terminal = IsTerminal}) ->
    {Hour, Minute, Second} = erlang:time(),
    %% For who sits before it.
    End = ["; Enter ends this" || IsTerminal],
    Manager = ["; no manager is there" || whereis(canal_lock) =:= undefined],
    io_lib:format("canal_lock on ~ts, ~2..0b:~2..0b:~2..0b~ts~ts", [node(), Hour, Minute, Second, Manager, End]).

lines(_Last, {trouble, Sentence}, _View, _Space) ->
    [Sentence];
lines(Last, Look = #look{info = Info, keys = Keys, holders = Holders}, View, Space) ->
    Head = head(Info, rates(Last, Look)),
    {KeyRows, HolderRows} = shares(Space, length(Head) + 5, length(Keys), length(Holders)),
    Head ++
        ["", [cells(["permits"]), "  key"]] ++
        [[cells([Permits]), "  ", shown(Key, View)] || {Key, Permits} <- lists:sublist(Keys, KeyRows)] ++
        ["", [cells(["permits", "keys"]), "  holder"]] ++
        [
            [cells([Permits, Count]), "  ", described(Pid, View)]
         || {Pid, Permits, Count} <- lists:sublist(Holders, HolderRows)
        ].

head(#{keys := Keys, permits := Permits, holders := Holders, memory := Bytes, not_held := NotHeld}, Rates) ->
    %% A mistake in somebody's code; mostly there is none.
    Names = [granted, refused, released, given_back] ++ [not_held || NotHeld > 0],
    [
        cells(["keys", "permits", "holders", "memory"]),
        cells([Keys, Permits, Holders, bytes(Bytes)]),
        cells([[string:replace(atom_to_list(Name), "_", " "), "/s"] || Name <- Names]),
        cells([maps:get(Name, Rates, "-") || Name <- Names])
    ].

%% What has been counted since the look before, by the second. Not known if there was none, or if it was at another
%% table, whose numbers began again. Only `granted' may be less than a moment before in the same one.
rates(#look{at = Before, info = Less}, #look{at = Now, info = Info}) when Now > Before ->
    Seconds = (Now - Before) / erlang:convert_time_unit(1, second, native),
    Names = [granted, refused, released, given_back, not_held],
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

%% Numbers and what stands above them, to the right.
cells(Cells) ->
    [cell(Cell) || Cell <- Cells].

cell(Number) when is_integer(Number) -> cell(integer_to_list(Number));
cell(Text) -> [$\s, string:pad(Text, ?CELL - 1, leading)].

%% How many lines of each list there are on a screen where others are taken: one half each, unless the other list needs
%% less.
shares(Space, Taken, Keys, Holders) ->
    Free = max(0, Space - Taken),
    KeyRows = min(Keys, max((Free + 1) div 2, Free - Holders)),
    {KeyRows, min(Holders, Free - KeyRows)}.

%% On the screen of another, who may not know of it.
described(Pid, View) when node(Pid) =/= node() ->
    [shown(Pid, View), " on ", atom_to_list(node(Pid))];
described(Pid, View) ->
    [shown(Pid, View) | purpose(Pid, View)].

%% What it is there for: its name, what it was started with, or where it is. Nothing if it has died since.
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

%% By a function of the caller's, which may not know what there is.
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

%% One that says how large it is, and heeds what moves the cursor.
is_terminal(Leader) ->
    [] =:= [error || Measure <- [fun io:columns/1, fun io:rows/1], measure(Measure, Leader, error) =:= error] andalso
        there(Leader, os, getenv, ["TERM"]) =/= "dumb".

%% `user' never answers, if its node was told to read nothing.
has_input(#view{leader = Leader, is_terminal = IsTerminal}) ->
    case there(Leader, init, get_argument, [noinput]) of
        {ok, _} -> IsTerminal andalso there(Leader, erlang, whereis, [user]) =/= Leader;
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

%% On the node of the leader, which shows and reads for others.
there(Leader, Module, Function, Arguments) ->
    try
        erpc:call(node(Leader), Module, Function, Arguments, ?TIMEOUT_MS)
    catch
        _:_ -> unknown
    end.
