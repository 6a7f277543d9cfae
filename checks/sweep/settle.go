package sweep

import (
	"maps"
	"slices"
)

// settle takes the results of the tasks that were sent, by their IDs, and retries the tasks without a
// result, in the order of their IDs. Afterwards none counts as sent.
func settle[T any](sent map[int]T, results []Result, take func(T, Result), retry func(T)) {
	for _, r := range results {
		if t, ok := sent[r.Task.ID]; ok {
			delete(sent, r.Task.ID)
			take(t, r)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(sent)) {
		retry(sent[id])
	}
	clear(sent)
}

func byID(a, b Result) int { return a.Task.ID - b.Task.ID }

// maxTries bounds how often a test without a result is started.
const maxTries = 3
