// Package spell finds the name that a misspelt one stands for.
package spell

import (
	"slices"
	"strings"
)

// Nearest returns the known name that a misspelt or shortened one most likely stands for, "" if
// none is near enough to be suggested. A check is also found without "check_".
func Nearest(name string, known []string) string {
	if full := "check_" + strings.ToLower(name); slices.Contains(known, full) {
		return full
	}
	if whole := completions(name, known); len(whole) == 1 {
		return whole[0]
	}
	near, least := "", min(3, len(name)/2+1)
	for _, k := range known {
		if n := min(Typos(name, k), Typos("check_"+name, k)); n < least {
			near, least = k, n
		}
	}
	return near
}

// completions returns the known names that begin with a name, which has letters.
func completions(name string, known []string) (names []string) {
	if len(strings.Trim(name, "-")) < 3 {
		return nil
	}
	for _, k := range known {
		if strings.HasPrefix(k, name) {
			names = append(names, k)
		}
	}
	return names
}

// Want returns what to write for a misspelt key: the key that it surely stands for, or else all
// keys. Keys of tables have their brackets: [[check]], [policy.NAME].
func Want(key string, keys []string) string {
	bare := make([]string, len(keys))
	for i, k := range keys {
		bare[i], _, _ = strings.Cut(strings.Trim(k, "[]"), ".")
	}
	longer := func(k string) bool { return len(k) > 3 && strings.HasPrefix(strings.ToLower(key), k) } // warning for warn
	if i := slices.IndexFunc(bare, longer); i >= 0 {
		return keys[i]
	}
	i := slices.Index(bare, Nearest(key, bare))
	if i >= 0 && (strings.HasPrefix(bare[i], key) || 4*Typos(key, bare[i]) <= len(key)) {
		return keys[i]
	}
	return strings.Join(keys, ", ")
}

// OneOf returns what to write for a word that a list lacks: the word that it surely stands
// for, or else "one of" and the list.
func OneOf(word string, list []string) string {
	want := Want(word, list)
	if slices.Contains(list, want) {
		return want
	}
	return "one of " + want
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
