package console

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// WriteFile writes a file that a person has named, as a new one or at its end. The directory may be
// another user's: so it follows no link, waits for no reader, and empties only a regular file without
// other names. Its errors name the file.
func WriteFile(path string, mode os.FileMode, atEnd bool, write func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, mode) //nolint:forbidigo // a person names it, and waits for it
	if err != nil {
		return err
	}
	err = checkFile(f)
	if err == nil && !atEnd {
		err = f.Truncate(0)
	}
	if err == nil {
		err = write(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func checkFile(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
		return errors.New("the file has another name, too (a hard link)")
	}
	return nil
}
