%% @private
%% Draws pictures of something that changes, until a line of input comes. A callback module reads and describes it.
%%
%% The calling process does all the work, so no process is left behind. It requests a line from the group leader by the
%% Erlang I/O protocol. The answer is a message, so the process can draw while it waits. A request for a line cannot be
%% withdrawn. So it is sent after everything that may raise, and later failures to read are shown, not raised.
-module(canal_lock_screen).

-export([run/2, lines/6]).
%% For callback modules.
-export([cells/1, duration/1, growth/3, rate/3, described/2]).

-export_type([options/0, reading/0, section/0, cell/0, show/0, last/0]).

-type options() :: #{
    interval_ms => pos_integer(),
    rows => pos_integer(),
    show => fun((term()) -> unicode:chardata())
}.

%% What a callback module has read; or why it could not, as a sentence or as a cause that the first reading raises.
-type reading() ::
    {read, Data :: term()} | {failed, Sentence :: unicode:chardata()} | {raise, canal_lock_errors:cause()}.

%% A list: whether it is shown while it is empty, the headings of its cells and of the text that follows them, its
%% elements, and the cells and the text of an element.
-type section() :: {
    always | unless_empty,
    [cell()],
    Heading :: string(),
    [Element :: term()],
    fun((Element :: term()) -> {[cell()], unicode:chardata()})
}.

%% A number or text that is aligned to the right, in the usual or in another number of columns.
-type cell() :: integer() | unicode:chardata() | {unicode:chardata(), Columns :: pos_integer()}.

%% Formats a term. Never fails.
-type show() :: fun((term()) -> unicode:chardata()).

%% The data of the last picture and how long before they were read, if there is one.
-type last() :: none | {Data :: term(), Seconds :: float()}.

%% What the first line says: who is shown, and a note.
-callback title() -> {Name :: string(), Note :: string()}.
%% No more than `Rows' elements of each list are shown.
-callback read(Rows :: pos_integer()) -> reading().
-callback explain(canal_lock_errors:cause()) -> unicode:chardata().
-callback head(last(), Data :: term()) -> [unicode:chardata()].
-callback sections(Data :: term(), show()) -> [section()].

%% A reading may take at most one part in this many of the time. So a large table gets fewer pictures than requested.
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
    module :: module(),
    interval_ms :: pos_integer(),
    rows :: pos_integer(),
    show :: show(),
    leader :: pid(),
    %% Monitors the leader. The request for a line uses the same reference.
    monitor :: reference(),
    %% On a terminal, each picture replaces the one before.
    is_terminal :: boolean(),
    encoding :: unicode | latin1
}).

-record(snapshot, {
    at :: integer(),
    data :: term(),
    took_ms :: non_neg_integer()
}).

%% Or why nothing could be read.
-type snapshot() :: #snapshot{} | {failed, unicode:chardata()}.

-spec run(module(), options()) -> ok | {raise, canal_lock_errors:cause()}.
run(Module, Options) ->
    Defaults = #{interval_ms => 1000, rows => 10, show => fun short/1},
    #{interval_ms := Interval_ms, rows := Rows, show := Show} = maps:merge(Defaults, Options),
    case read(Module, Rows) of
        {raise, Cause} ->
            {raise, Cause};
        First ->
            Leader = group_leader(),
            View = #view{
                module = Module,
                interval_ms = Interval_ms,
                rows = Rows,
                show = fun(Term) -> shown(Term, Show) end,
                leader = Leader,
                monitor = monitor(process, Leader),
                is_terminal = is_terminal(Leader),
                encoding = encoding(Leader)
            },
            try
                draw_first(First, View)
            after
                demonitor(View#view.monitor, [flush])
            end
    end.

%% Without a terminal the first picture comes after one interval, with rates.
draw_first(First, View = #view{leader = Leader, monitor = Monitor, is_terminal = IsTerminal}) ->
    _ = [draw(none, First, View) || IsTerminal],
    HasInput = has_input(View),
    _ = [Leader ! {io_request, self(), Monitor, {get_line, unicode, ""}} || HasInput],
    draw_until_input(case HasInput of true -> first; false -> last end, First, View).

%% Without input the next picture is the last one.
draw_until_input(Next, Last, View = #view{monitor = Monitor}) ->
    receive
        {io_reply, Monitor, NoLine} when Next =:= first, not is_list(NoLine), not is_binary(NoLine) ->
            draw_until_input(last, Last, View);
        {io_reply, Monitor, _} ->
            ok;
        {'DOWN', Monitor, process, _, _} ->
            ok
    after pause_ms(Last, View) ->
        Drawn = read_and_draw(Last, View),
        case Next of
            last -> ok;
            _ -> draw_until_input(further, Drawn, View)
        end
    end.

%% From the end of one snapshot to the beginning of the next.
-spec pause_ms(snapshot(), #view{}) -> pos_integer().
pause_ms({failed, _}, #view{interval_ms = Interval_ms}) ->
    Interval_ms;
pause_ms(#snapshot{took_ms = Took_ms}, #view{interval_ms = Interval_ms}) ->
    max(Interval_ms, (?PARTS_OF_TIME - 1) * Took_ms).

read_and_draw(Last, View = #view{module = Module, rows = Rows}) ->
    Next =
        case read(Module, Rows) of
            {raise, Cause} -> {failed, Module:explain(Cause)};
            Snapshot -> Snapshot
        end,
    draw(Last, Next, View),
    Next.

-spec read(module(), pos_integer()) -> snapshot() | {raise, canal_lock_errors:cause()}.
read(Module, Rows) ->
    At = erlang:monotonic_time(),
    case Module:read(Rows) of
        {read, Data} ->
            Took_ms = erlang:convert_time_unit(erlang:monotonic_time() - At, native, millisecond),
            #snapshot{at = At, data = Data, took_ms = Took_ms};
        NotRead ->
            NotRead
    end.

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

title(#view{module = Module, is_terminal = IsTerminal}) ->
    {Name, Note} = Module:title(),
    {Hour, Minute, Second} = erlang:time(),
    End = ["; Enter ends this" || IsTerminal],
    io_lib:format("~ts on ~ts, ~2..0b:~2..0b:~2..0b~ts~ts", [Name, node(), Hour, Minute, Second, Note, End]).

lines(_Last, {failed, Sentence}, _View, _Space) ->
    [Sentence];
lines(Last, Next = #snapshot{data = Data}, #view{module = Module, rows = Rows, show = Show}, Space) ->
    lines(Module, last(Last, Next), Data, Show, Rows, Space).

%% What follows the title: the first lines, and at most `Rows' elements of each list.
-spec lines(module(), last(), Data :: term(), show(), Rows, Space) -> [unicode:chardata()] when
    Rows :: pos_integer(), Space :: integer().
lines(Module, Last, Data, Show, Rows, Space) ->
    Head = Module:head(Last, Data),
    Sections = [
        {{Headings, Heading}, [Row(Element) || Element <- lists:sublist(Elements, Rows)]}
     || {When, Headings, Heading, Elements, Row} <- Module:sections(Data, Show),
        When =:= always orelse Elements =/= []
    ],
    %% The title is one line. A section has an empty line and a heading.
    Free = max(0, Space - 1 - length(Head) - 2 * length(Sections)),
    Shares = shares(Free, [length(Lines) || {_, Lines} <- Sections]),
    Head ++
        lists:append([
            ["" | [[cells(Cells), "  ", Text] || {Cells, Text} <- [First | lists:sublist(Lines, Share)]]]
         || {{First, Lines}, Share} <- lists:zip(Sections, Shares)
        ]).

last(#snapshot{at = Before, data = Data}, #snapshot{at = Now}) when Now > Before ->
    {Data, (Now - Before) / erlang:convert_time_unit(1, second, native)};
last(_, _) ->
    none.

%% Divides `Free' rows among lists of these lengths: each list in turn gets one more row, until it needs no more.
shares(Free, Lengths) ->
    Numbered = lists:enumerate(Lengths),
    Turns = lists:sort([{Row, List} || {List, Length} <- Numbered, Row <- lists:seq(1, min(Length, Free))]),
    Given = [List || {_, List} <- lists:sublist(Turns, Free)],
    [length([List || Got <- Given, Got =:= List]) || {List, _} <- Numbered].

%%% Parts of lines

%% Numbers and headings, aligned to the right.
-spec cells([cell()]) -> unicode:chardata().
cells(Cells) ->
    [cell(Cell) || Cell <- Cells].

cell({Text, Columns}) -> [$\s, string:pad(Text, Columns - 1, leading)];
cell(Number) when is_integer(Number) -> cell({integer_to_list(Number), ?CELL});
cell(Text) -> cell({Text, ?CELL}).

%% A fraction of a millisecond is shown if the number is a float.
-spec duration(Ms :: number()) -> unicode:chardata().
duration(Ms) when Ms >= 1000 -> [float_to_list(Ms / 1000, [{decimals, 1}]), " s"];
duration(Ms) when is_float(Ms) -> [float_to_list(Ms, [{decimals, 2}]), " ms"];
duration(Ms) -> [integer_to_list(Ms), " ms"].

%% How much these counts have grown. Empty if one has decreased: then another table or process counts, from 0.
-spec growth([Name], #{Name => integer()}, #{Name => integer()}) -> #{Name => non_neg_integer()} when Name :: atom().
growth(Names, Less, More) ->
    Differences = maps:from_list([{Name, maps:get(Name, More) - maps:get(Name, Less)} || Name <- Names]),
    case [Negative || Negative <- maps:values(Differences), Negative < 0] of
        [] -> Differences;
        _ -> #{}
    end.

%% Per second, `-' if unknown.
-spec rate(Name, #{Name => non_neg_integer()}, last()) -> string() when Name :: atom().
rate(Name, Growth, {_, Seconds}) when is_map_key(Name, Growth) -> rate(maps:get(Name, Growth), Seconds);
rate(_, _, _) -> "-".

rate(0, _) -> "0";
rate(Difference, Seconds) when Difference >= 10 * Seconds -> integer_to_list(round(Difference / Seconds));
rate(Difference, Seconds) -> float_to_list(Difference / Seconds, [{decimals, 1}]).

%% A process, and what identifies it: its node if it is another one, its name, its initial call, or its current
%% function. Only the pid if it has died.
-spec described(pid(), show()) -> unicode:chardata().
described(Pid, Show) when node(Pid) =/= node() ->
    [Show(Pid), " on ", atom_to_list(node(Pid))];
described(Pid, Show) ->
    [Show(Pid) | purpose(Pid, Show)].

purpose(Pid, _Show) when Pid =:= self() ->
    "  the caller";
purpose(Pid, Show) ->
    case process_info(Pid, [registered_name, initial_call, current_function, total_heap_size]) of
        [{_, Name} | _] when is_atom(Name) -> ["  ", Show(Name)];
        [_, {_, {proc_lib, _, _}}, _, {_, Words}] when Words =< ?MAX_HEAP_WORDS ->
            ["  ", called(proc_lib:translate_initial_call(Pid), Show)];
        [_, {_, {erlang, apply, 2}}, {_, Current = {_, _, _}}, _] -> ["  in ", called(Current, Show)];
        [_, {_, Initial}, _, _] -> ["  ", called(Initial, Show)];
        undefined -> ""
    end.

called({Module, Function, Arity}, Show) ->
    Show(fun Module:Function/Arity).

%% The caller's function can fail for some terms.
shown(Term, Show) ->
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
