%% Random numbers for the inside of timed loops: an LCG of 32 bits (Numerical Recipes), of which the upper bits are
%% used. Two multiplications and no word of heap; a call of `rand' costs as much as a pair.
-define(NEXT_RANDOM(Random), (((Random) * 1664525 + 1013904223) band 16#FFFFFFFF)).
%% From 1 to Count.
-define(ONE_OF(Count, Random), (((Random) * (Count)) bsr 32 + 1)).
