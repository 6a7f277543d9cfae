package probe

import (
	"errors"
	"testing"
)

// A loader without memory or files says nothing about the library.
func TestWhyNotLoaded(t *testing.T) {
	t.Parallel()
	const of = "load libnvidia-ml.so.1: libnvidia-ml.so.1: "
	for said, want := range map[string]error{
		"failed to map segment from shared object: Cannot allocate memory": ErrNoRoom,
		"cannot open shared object file: Too many open files":              ErrNoRoom,
		"cannot open shared object file: Too many open files in system":    ErrNoRoom,
		"cannot allocate memory in static TLS block":                       ErrNoLibrary,
		"file too short":      ErrNoLibrary,
		"undefined symbol: x": ErrNoLibrary,
	} {
		err := whyNotLoaded(errors.New(of + said))
		if !errors.Is(err, want) || errors.Is(err, ErrNoRoom) == IsDamaged(err) {
			t.Errorf("%s: %v", said, err)
		}
	}
}
