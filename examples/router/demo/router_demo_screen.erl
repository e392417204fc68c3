%% Shows what goes on while it does: on a terminal a table refreshed in place, elsewhere lines as they come.
-module(router_demo_screen).

-export([new/1, show/2, say/2, leave/1]).

-export_type([screen/0, output/0, picture/0, row/0]).

-type output() :: {terminal, Columns :: pos_integer()} | lines.

-opaque screen() :: #{output := output(), drawn := non_neg_integer(), said := [iolist()], shown_ms := integer() | none}.

-type picture() :: #{
    elapsed_ms := non_neg_integer(), all_ms := pos_integer(), killed := non_neg_integer(), rows := [row()]
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

%% How many of the last events stay on the terminal.
-define(EVENTS, 6).
-define(BAR, 40).
%% Where lines come one after the other, they come this much apart.
-define(LINES_EVERY_MS, 2000).

-define(TITLE, "Requests through a router, which gives each app as many as its dynos bear.").
-define(LEGEND, "(p50, p99: what an acquire takes. busy: requests that dynos work on.)").

-spec new(output()) -> screen().
new(Output) ->
    #{output => Output, drawn => 0, said => [], shown_ms => none}.

-spec show(picture(), screen()) -> screen().
show(#{rows := Rows} = Picture, #{output := {terminal, Columns}, said := Said, drawn := Drawn} = Screen) ->
    Table = [header() | lists:map(fun row/1, Rows)],
    Lines = [?TITLE, progress(Picture), ""] ++ Table ++ [?LEGEND, ""] ++ lists:reverse(Said),
    %% A line that wraps would be two when they are gone over.
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

%% Something has happened, at a time of the scenario.
-spec say({Elapsed_ms :: non_neg_integer(), iodata()}, screen()) -> screen().
say({Elapsed_ms, Text}, #{output := lines} = Screen) ->
    io:put_chars([time(Elapsed_ms), Text, $\n]),
    Screen;
say({Elapsed_ms, Text}, #{output := {terminal, _}, said := Said} = Screen) ->
    Screen#{said := lists:sublist([[time(Elapsed_ms), Text] | Said], ?EVENTS)}.

%% The last picture stays where it is.
-spec leave(screen()) -> ok.
leave(_Screen) ->
    io:nl().

up(0) -> "";
up(Lines) -> io_lib:format("\e[~bA\r", [Lines]).

time(Elapsed_ms) ->
    io_lib:format("~5.1f s  ", [Elapsed_ms / 1000]).

progress(#{elapsed_ms := Elapsed_ms, all_ms := All_ms, killed := Killed}) ->
    Full = min(?BAR, ?BAR * Elapsed_ms div All_ms),
    io_lib:format("[~ts~ts] ~b of ~b s, ~b processes killed", [
        lists:duplicate(Full, $#), lists:duplicate(?BAR - Full, $.), Elapsed_ms div 1000, All_ms div 1000, Killed
    ]).

%% With six buckets of less than ten it is as wide as the narrowest terminals.
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
