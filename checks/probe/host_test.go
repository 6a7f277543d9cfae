package probe

import (
	"sync"
	"testing"
)

// What watches the GPUs while they work asks beside the test, net_dns asks all servers at
// once: go test -race shows whether they may.
func TestHostOfManyGoroutines(t *testing.T) {
	t.Parallel()
	h := NewHost("/")
	h.SetPast(t.TempDir())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				mounts, err := Mounts(h)
				if err != nil || len(mounts) == 0 {
					t.Errorf("%d mounts, %v", len(mounts), err)
				}
				if _, err := ReadMemory(h); err != nil {
					t.Error(err)
				}
				if _, err := Processes(h); err != nil {
					t.Error(err)
				}
				_ = h.Recall("x", new(int))
				_, _, _ = h.Blocked(), h.Unanswered(), Kept[int](h, "x")
				ForgetMounts(h)
			}
		})
	}
	all.Wait()
}
