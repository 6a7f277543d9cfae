package fabric

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// BenchmarkIBErrors measures both checks on a healthy node of ten ports, after the ports
// themselves are known.
func BenchmarkIBErrors(b *testing.B) {
	root := b.TempDir()
	if err := fakesys.DGXH200().Write(root); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		for _, c := range []checks.Check{&ibErrors{}, &ibLinkFlapping{Hours: 24, Count: 5}} {
			if f := c.Run(b.Context(), env); checks.Worst(f) > checks.Warn {
				b.Fatal(f)
			}
		}
	}
}
