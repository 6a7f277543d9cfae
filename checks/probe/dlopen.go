package probe

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"

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

// ErrNoRoom means that the node has too little memory, or the process too many files, to load a library.
var ErrNoRoom = errors.New("cannot load a library now")

// WhyNotLoaded returns the loader's reason for a library that another package could not load, nil if it can be
// loaded now.
func WhyNotLoaded(name string) error {
	handle, err := Dlopen(name)
	if err == nil {
		_ = purego.Dlclose(handle)
		return nil
	}
	return whyNotLoaded(err)
}

func whyNotLoaded(err error) error {
	if errors.Is(err, ErrNoLibrary) {
		return err
	}
	for _, e := range []error{syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if strings.HasSuffix(strings.ToLower(err.Error()), ": "+e.Error()) {
			return fmt.Errorf("%w: %w", ErrNoRoom, err)
		}
	}
	return damagedLibrary{err}
}

// IsStub returns the error of a library that loads, but says that there is no library: the stub of a toolkit.
func IsStub(name string, err error) error {
	return damagedLibrary{fmt.Errorf("load %s: it loads, but is not the driver's library, perhaps a stub of the CUDA toolkit: %w", name, err)}
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
