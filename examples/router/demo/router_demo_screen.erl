%% Shows the state of the demo: on a terminal as a table that is updated in place, elsewhere as lines.
-module(router_demo_screen).

-export([new/1, show/2, add_event/2, close/1]).

-export_type([screen/0, output/0, picture/0, row/0]).

-type output() :: {terminal, Columns :: pos_integer()} | lines.

-opaque screen() :: #{
    output := output(), drawn := non_neg_integer(), events := [iolist()], shown_ms := integer() | none
}.

-type picture() :: #{
    elapsed_ms := non_neg_integer(), total_ms := pos_integer(), killed := non_neg_integer(), rows := [row()]
}.

-type row() :: #{
    host := router_apps:host(),
    dynos := non_neg_integer(),
    capacity := non_neg_integer(),
    %% 0: the app refuses at once.
    wait_ms := non_neg_integer(),
    buckets := [pos_integer()],
    at_work := non_neg_integer(),
    waiting := non_neg_integer(),
    granted_s := float(),
    refused_s := float(),
    %% Waits that have ended.
    waited_s := float(),
    acquire_p99_ns := non_neg_integer(),
    wait_p99_ns := non_neg_integer()
}.

%% Number of events shown on a terminal.
-define(EVENTS, 6).
-define(BAR, 40).
%% Interval between two outputs of lines.
-define(LINES_EVERY_MS, 2000).

-define(TITLE, "Requests through a router that limits each app to the capacity of its dynos.").
-define(LEGEND, "(busy: requests on dynos, and capacity. p99 us: of acquires. p99 ms: of waits.)").

-spec new(output()) -> screen().
new(Output) ->
    #{output => Output, drawn => 0, events => [], shown_ms => none}.

-spec show(picture(), screen()) -> screen().
show(#{rows := Rows} = Picture, #{output := {terminal, Columns}, events := Events, drawn := Drawn} = Screen) ->
    Table = [header() | lists:map(fun row/1, Rows)],
    Lines = [?TITLE, modes(Rows), progress(Picture), ""] ++ Table ++ [?LEGEND, ""] ++ lists:reverse(Events),
    %% A wrapped line would take two rows, and the cursor movement would be wrong.
    Cut = [string:slice(Line, 0, Columns - 1) || Line <- Lines],
    io:put_chars([up(Drawn), [["\e[K", Line, $\n] || Line <- Cut], "\e[J"]),
    Screen#{drawn := length(Lines)};
show(#{elapsed_ms := Elapsed_ms, rows := Rows}, #{output := lines, shown_ms := Shown_ms} = Screen) when
    Shown_ms =:= none; Elapsed_ms - Shown_ms >= ?LINES_EVERY_MS
->
    Header = [[?TITLE, $\n, modes(Rows), $\n, ?LEGEND, $\n, time(Elapsed_ms), header(), $\n] || Shown_ms =:= none],
    io:put_chars([Header, [[time(Elapsed_ms), row(Row), $\n] || Row <- Rows]]),
    Screen#{shown_ms := Elapsed_ms};
show(_Picture, Screen) ->
    Screen.

%% Shows an event with its time in the scenario.
-spec add_event({Elapsed_ms :: non_neg_integer(), iodata()}, screen()) -> screen().
add_event({Elapsed_ms, Text}, #{output := lines} = Screen) ->
    io:put_chars([time(Elapsed_ms), Text, $\n]),
    Screen;
add_event({Elapsed_ms, Text}, #{output := {terminal, _}, events := Events} = Screen) ->
    Screen#{events := lists:sublist([[time(Elapsed_ms), Text] | Events], ?EVENTS)}.

%% Leaves the last picture visible.
-spec close(screen()) -> ok.
close(_Screen) ->
    io:nl().

up(0) -> "";
up(Lines) -> io_lib:format("\e[~bA\r", [Lines]).

time(Elapsed_ms) ->
    io_lib:format("~5.1f s  ", [Elapsed_ms / 1000]).

modes(Rows) ->
    [
        "If all dynos are busy: ",
        lists:join("; ", [[Host, $\s, mode(Wait_ms)] || #{host := Host, wait_ms := Wait_ms} <- Rows]),
        "."
    ].

mode(0) -> "refuses";
mode(Wait_ms) -> io_lib:format("waits up to ~b ms, then refuses", [Wait_ms]).

progress(#{elapsed_ms := Elapsed_ms, total_ms := Total_ms, killed := Killed}) ->
    Full = min(?BAR, ?BAR * Elapsed_ms div Total_ms),
    io_lib:format("[~ts~ts] ~b of ~b s, ~b processes killed", [
        lists:duplicate(Full, $#), lists:duplicate(?BAR - Full, $.), Elapsed_ms div 1000, Total_ms div 1000, Killed
    ]).

%% 79 columns with six buckets of one digit.
-define(ROW, "~-4ts ~5ts ~-13ts ~5ts ~5ts ~9ts ~9ts ~8ts ~6ts ~6ts").

header() ->
    io_lib:format(?ROW, [
        "app", "dynos", "buckets", "busy", "queue", "granted/s", "refused/s", "waited/s", "p99 us", "p99 ms"
    ]).

row(#{host := Host, dynos := Dynos, capacity := Capacity, at_work := AtWork, buckets := Buckets} = Row) ->
    #{granted_s := Granted_s, refused_s := Refused_s, waited_s := Waited_s, waiting := Waiting} = Row,
    #{acquire_p99_ns := Acquire_p99_ns, wait_p99_ns := Wait_p99_ns} = Row,
    Rates = [integer_to_list(round(Rate)) || Rate <- [Granted_s, Refused_s, Waited_s]],
    Shown = [io_lib:format("~w", [Term]) || Term <- [Dynos, Buckets]],
    Busy = io_lib:format("~b/~b", [AtWork, Capacity]),
    Times = [io_lib:format("~.1f", [Time]) || Time <- [Acquire_p99_ns / 1.0e3, Wait_p99_ns / 1.0e6]],
    io_lib:format(?ROW, [Host | Shown] ++ [Busy, integer_to_list(Waiting)] ++ Rates ++ Times).
