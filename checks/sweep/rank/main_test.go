package rank

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// asRank has the test's program be a rank: its value is the name of the node.
const asRank = "NHC_GPU_TEST_RANK"

// TestMain becomes a rank in a process of its own if a test has started it as one.
func TestMain(m *testing.M) {
	name := os.Getenv(asRank)
	if name == "" {
		os.Exit(m.Run())
	}
	o := Options{Version: testVersion, self: loopback(name), program: os.Getenv("NHC_GPU_TEST_PROGRAM")}
	if err := Serve(context.Background(), os.Stdin, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
