package pci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Config has values of a PCI device's configuration space that have no file of their own in /sys:
// /sys/bus/pci/devices/ADDRESS/config.
type Config struct {
	Gone bool // every register reads as ones: the device does not answer any more

	Express     bool // the registers of PCI Express were read; only root can read them
	ReadRequest int  // MaxReadReq, bytes
	Payload     int  // MaxPayload, bytes
	Relaxed     bool // relaxed ordering is enabled

	Extended bool     // the extended capabilities were read
	HasACS   bool     // the device has Access Control Services
	ACS      ACSFlags // the enabled ones
}

// ACSFlags are bits of the ACS Control Register.
type ACSFlags uint16

// These are the bits, by PCI Express Base Specification 5.0, 7.7.8.3.
const (
	ACSSourceValidation ACSFlags = 1 << iota
	ACSTranslationBlocking
	ACSRequestRedirect
	ACSCompletionRedirect
	ACSUpstreamForwarding
	ACSEgressControl
	ACSDirectTranslated
)

// ReadConfig reads the configuration space of a device. It reads only the registers that it needs,
// since each read is a transaction on the bus. It may block when the device does not answer. The
// error is fs.ErrNotExist if the machine does not show it.
func ReadConfig(h *probe.Host, address string) (Config, error) {
	return probe.Once(h, "pciconfig "+address, func() (c Config, err error) {
		p := PCIDevices + "/" + address + "/config"
		if err := h.StuckAt(PCIDevices + "/" + address); err != nil {
			return c, err
		}
		if h.Word(PCIDevices+"/"+address, "power_state", &err) == "D3cold" { // switched off, and a read would wake it up
			return c, &fs.PathError{Op: "read", Path: p, Err: fs.ErrNotExist}
		}
		fd, err := probe.Open(unix.AT_FDCWD, h.Path(p))
		if err != nil {
			return c, &fs.PathError{Op: "read", Path: p, Err: err}
		}
		defer unix.Close(fd)
		if c, err = parsePCIConfig(fdReader(fd)); err != nil {
			err = fmt.Errorf("read %s: %w", p, err)
		}
		return c, err
	})
}

// fdReader reads at an offset of an open file.
type fdReader int

func (f fdReader) ReadAt(b []byte, off int64) (n int, err error) {
	for {
		n, err = unix.Pread(int(f), b, off)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return max(n, 0), err
}

// These are the registers that are read, by the same specification, 7.5 and 7.6.
const (
	pciHeader   = 0x40
	pciStatus   = 0x06
	pciHasList  = 1 << 4
	pciList     = 0x34
	pciExtended = 0x100

	capExpress    = 0x10
	expressDevCtl = 8
	extendedACS   = 0x000d
	acsControl    = 6
)

// errConfig means that the data is not a configuration space.
var errConfig = errors.New("not a configuration space")

// parsePCIConfig follows the capabilities. It ignores registers beyond the end of the data: users
// other than root can read only the header.
func parsePCIConfig(r io.ReaderAt) (c Config, err error) {
	header := make([]byte, pciHeader)
	if n, err := r.ReadAt(header, 0); n < pciHeader {
		if err == nil || errors.Is(err, io.EOF) {
			err = errConfig
		}
		return c, err
	}
	c.Gone = true
	for _, b := range header {
		c.Gone = c.Gone && b == 0xff
	}
	if c.Gone || binary.LittleEndian.Uint16(header[pciStatus:])&pciHasList == 0 {
		return c, nil
	}
	w := walker{r: r}
	if at := w.find(int(header[pciList])); at > 0 {
		control := w.read16(at + expressDevCtl)
		c.Express = !w.ended
		c.ReadRequest, c.Payload, c.Relaxed = 128<<(control>>12&7), 128<<(control>>5&7), control&(1<<4) != 0
		if !c.Express {
			c.ReadRequest, c.Payload, c.Relaxed = 0, 0, false
		}
	}
	if c.Express {
		c.HasACS, c.ACS, c.Extended = w.acs()
	}
	return c, w.err
}

// walker reads registers. Beyond the end they are 0.
type walker struct {
	r     io.ReaderAt
	ended bool
	err   error
}

func (w *walker) read(off, n int) uint32 {
	var b [4]byte
	got, err := w.r.ReadAt(b[:n], int64(off))
	if got < n {
		w.ended = true
		if err != nil && !errors.Is(err, io.EOF) {
			w.err = err
		}
		return 0
	}
	return binary.LittleEndian.Uint32(b[:])
}

func (w *walker) read16(off int) uint16 { return uint16(w.read(off, 2)) }

// find searches the list of capabilities that begins at for PCI Express, and returns 0 if it is
// missing. It follows no more entries than fit, so that a circular list ends.
func (w *walker) find(at int) int {
	for range (pciExtended - pciHeader) / 4 {
		at &^= 3
		if at < pciHeader || w.ended {
			return 0
		}
		entry := w.read16(at)
		switch entry & 0xff {
		case capExpress:
			return at
		case 0xff: // a register that does not answer
			return 0
		}
		at = int(entry >> 8)
	}
	return 0
}

// acs searches the extended list for Access Control Services. seen is false if the list is not
// readable.
func (w *walker) acs() (has bool, flags ACSFlags, seen bool) {
	at := pciExtended
	for range (0x1000 - pciExtended) / 8 {
		entry := w.read(at, 4)
		switch {
		case w.ended || entry == 0xffffffff:
			return false, 0, at > pciExtended
		case entry == 0: // no extended capability
			return false, 0, true
		case entry&0xffff == extendedACS:
			flags = ACSFlags(w.read16(at + acsControl))
			return !w.ended, flags, !w.ended
		}
		if at = int(entry>>20) &^ 3; at < pciExtended {
			return false, 0, true
		}
	}
	return false, 0, true
}
