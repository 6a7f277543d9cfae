package probe

import (
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// OpenLibrary calls dlopen. The system's loader keeps the text of an error for the thread of the
// call, so the goroutine stays on its thread until it has read the text.
func OpenLibrary(name string, mode int) (handle uintptr, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, mode)
}

// Dlopen loads a library. The error is [ErrNoLibrary] if it is not installed.
func Dlopen(name string) (handle uintptr, err error) {
	handle, err = OpenLibrary(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	switch {
	case err == nil:
		return handle, nil
	case strings.HasPrefix(err.Error(), name+": cannot open shared object file: No such file"):
		return 0, fmt.Errorf("load %s: %w", name, ErrNoLibrary)
	}
	return 0, fmt.Errorf("load %s: %s", name, OneLine(err.Error()))
}

// A damagedLibrary is a file that the loader refuses. It matches [ErrNoLibrary].
type damagedLibrary struct{ error }

func (damagedLibrary) Is(target error) bool { return target == ErrNoLibrary }

// IsDamaged reports whether an error is a file that the loader refuses: the library is installed.
func IsDamaged(err error) bool { return errors.As(err, new(damagedLibrary)) }

// WhyNotLoaded returns the loader's reason for a library that another package could not load.
func WhyNotLoaded(name string) error {
	switch handle, err := Dlopen(name); {
	case err == nil: // it is there by now
		_ = purego.Dlclose(handle)
	case !errors.Is(err, ErrNoLibrary):
		return damagedLibrary{err}
	}
	return fmt.Errorf("load %s: %w", name, ErrNoLibrary)
}

var errNoFunction = errors.New("no such function")

// Dlsym finds a function of a library.
func Dlsym(handle uintptr, name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	address, err := purego.Dlsym(handle, name)
	if err == nil && address == 0 {
		err = errNoFunction
	}
	return address, err
}
