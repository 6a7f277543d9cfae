// Package tier defines the three tiers of the suite. An unmarked test runs in make test. The
// variable NHC_GPU_TESTS adds others: "all" adds the tests that call All, "long" adds those that
// call Long, too.
package tier

import (
	"os"
	"testing"
)

// setting is the environment variable with the highest tier to run. Tests do not read it: one with a longer
// form is two tests, since each tier runs only the tests with its mark.
const setting = "NHC_GPU_TESTS"

// All skips a test that takes too long for make test: it runs in make test-all. Call it first in a
// test function: the Makefile finds the marked tests by it.
func All(t testing.TB) {
	t.Helper()
	if v := os.Getenv(setting); v != "all" && v != "long" {
		t.Skip("runs in make test-all")
	}
}

// Long skips a test that takes too long for CI: it runs in make test-long.
func Long(t testing.TB) {
	t.Helper()
	if os.Getenv(setting) != "long" {
		t.Skip("runs in make test-long")
	}
}
