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
    buckets := [pos_integer()],
    at_work := non_neg_integer(),
    granted_s := float(),
    refused_s := float(),
    died_s := float(),
    p50_ns := non_neg_integer(),
    p99_ns := non_neg_integer()
}.

%% Number of events shown on a terminal.
-define(EVENTS, 6).
-define(BAR, 40).
%% Interval between two outputs of lines.
-define(LINES_EVERY_MS, 2000).

-define(TITLE, "Requests through a router that limits each app to the capacity of its dynos.").
-define(LEGEND, "(p50, p99: duration of an acquire. busy: requests in progress on dynos.)").

-spec new(output()) -> screen().
new(Output) ->
    #{output => Output, drawn => 0, events => [], shown_ms => none}.

-spec show(picture(), screen()) -> screen().
show(#{rows := Rows} = Picture, #{output := {terminal, Columns}, events := Events, drawn := Drawn} = Screen) ->
    Table = [header() | lists:map(fun row/1, Rows)],
    Lines = [?TITLE, progress(Picture), ""] ++ Table ++ [?LEGEND, ""] ++ lists:reverse(Events),
    %% A wrapped line would take two rows, and the cursor movement would be wrong.
    Cut = [string:slice(Line, 0, Columns - 1) || Line <- Lines],
    io:put_chars([up(Drawn), [["\e[K", Line, $\n] || Line <- Cut], "\e[J"]),
    Screen#{drawn := length(Lines)};
show(#{elapsed_ms := Elapsed_ms, rows := Rows}, #{output := lines, shown_ms := Shown_ms} = Screen) when
    Shown_ms =:= none; Elapsed_ms - Shown_ms >= ?LINES_EVERY_MS
->
    Header = [[?TITLE, $\n, ?LEGEND, $\n, time(Elapsed_ms), header(), $\n] || Shown_ms =:= none],
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

progress(#{elapsed_ms := Elapsed_ms, total_ms := Total_ms, killed := Killed}) ->
    Full = min(?BAR, ?BAR * Elapsed_ms div Total_ms),
    io_lib:format("[~ts~ts] ~b of ~b s, ~b processes killed", [
        lists:duplicate(Full, $#), lists:duplicate(?BAR - Full, $.), Elapsed_ms div 1000, Total_ms div 1000, Killed
    ]).

%% 80 columns with six buckets of one digit.
-define(ROW, "~-4ts ~5ts ~-13ts ~8ts ~4ts ~9ts ~9ts ~6ts ~6ts ~6ts").

header() ->
    io_lib:format(?ROW, [
        "app", "dynos", "buckets", "capacity", "busy", "granted/s", "refused/s", "died/s", "p50 us", "p99 us"
    ]).

row(#{host := Host, dynos := Dynos, capacity := Capacity, at_work := AtWork, buckets := Buckets} = Row) ->
    #{granted_s := Granted_s, refused_s := Refused_s, died_s := Died_s, p50_ns := P50_ns, p99_ns := P99_ns} = Row,
    Rates = [integer_to_list(round(Rate)) || Rate <- [Granted_s, Refused_s, Died_s]],
    Times = [io_lib:format("~.1f", [Time_ns / 1000]) || Time_ns <- [P50_ns, P99_ns]],
    [Shown | Counts] = [io_lib:format("~w", [Term]) || Term <- [Buckets, Dynos, Capacity, AtWork]],
    io_lib:format(?ROW, [Host, hd(Counts), Shown | tl(Counts)] ++ Rates ++ Times).
