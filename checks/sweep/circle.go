package sweep

import (
	"iter"
	"math/rand/v2"
	"slices"
)

// circle yields the pairs of a round of the circle method among n: rounds 0 to n-2 (n-1 if n is odd)
// have all pairs, each once. If n is odd one is free in each round. In an even round and the next one each is
// first once and second once, if it is not free: a fault may show in one place only.
func circle(n, round int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		turn := n - 1 + n%2 // all but the fixed one turn; if n is odd the fixed one does not exist
		half := (turn - 1) / 2
		fixed := [2]int{n - 1, round % turn}
		if (round+half)%2 == 0 {
			fixed[0], fixed[1] = fixed[1], fixed[0]
		}
		if n%2 == 0 && !yield(fixed[0], fixed[1]) {
			return
		}
		for k := 1; k <= half; k++ {
			i, j := (round+k)%turn, (round-k%turn+turn)%turn
			if (half-k)%2 == 0 {
				i, j = j, i
			}
			if !yield(i, j) {
				return
			}
		}
	}
}

// circleRounds returns the number of rounds with all pairs of n.
func circleRounds(n int) int {
	if n < 2 {
		return 0
	}
	return n - 1 + n%2
}

// pickRounds chooses different rounds of the circle method among n. The first two are neighbours: the
// pairs of both connect all nodes, so the pairs of any choice are a connected graph in which each
// node has one partner for each round.
func pickRounds(rng *rand.Rand, n, count int) []int {
	all := circleRounds(n)
	if count >= all {
		rounds := make([]int, all)
		for i := range rounds {
			rounds[i] = i
		}
		return rounds
	}
	first := 2 * rng.IntN(max(all/2, 1)) // see circle
	rounds := []int{first}
	for len(rounds) < count {
		r := first + 1
		if len(rounds) > 1 {
			r = rng.IntN(all)
		}
		if !slices.Contains(rounds, r) {
			rounds = append(rounds, r)
		}
	}
	return rounds
}
