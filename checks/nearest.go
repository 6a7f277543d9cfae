package checks

import (
	"slices"
	"strings"
)

// Nearest returns the known name that a misspelt one most likely stands for, "" if none is
// near enough to be suggested. A check is also found without "check_".
func Nearest(name string, known []string) string {
	if full := "check_" + strings.ToLower(name); slices.Contains(known, full) {
		return full
	}
	near, least := "", min(3, len(name)/2+1)
	for _, k := range known {
		if n := min(Typos(name, k), Typos("check_"+name, k)); n < least {
			near, least = k, n
		}
	}
	return near
}

// DidYouMean returns a question that can end an error message, "" without a near name.
func DidYouMean(name string, known []string) string {
	near := Nearest(name, known)
	if near == "" {
		return ""
	}
	return "; did you mean " + near + "?"
}

// Typos counts the letters that must be added, removed, replaced or swapped with their
// neighbour to make one name of another, ignoring case.
func Typos(name, other string) int {
	a, b := strings.ToLower(name), strings.ToLower(other)
	above, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			n := min(next[j], row[j+1]) + 1
			if a[i] == b[j] {
				n = min(n, row[j])
			} else {
				n = min(n, row[j]+1)
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				n = min(n, above[j-1]+1)
			}
			next[j+1] = n
		}
		above, row = row, next
	}
	return row[len(b)]
}
