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

// Config is what the configuration space of a PCI device says that /sys has no
// file for: /sys/bus/pci/devices/ADDRESS/config.
type Config struct {
	Gone bool // every register reads as ones: the device does not answer any more

	Express     bool // the registers of PCI Express were read; only root sees them
	ReadRequest int  // MaxReadReq, bytes
	Payload     int  // MaxPayload, bytes
	Relaxed     bool // relaxed ordering is enabled

	Extended bool     // the extended capabilities were read
	HasACS   bool     // the device has Access Control Services
	ACS      ACSFlags // those that are on
}

// ACSFlags are bits of the ACS Control Register.
type ACSFlags uint16

// The bits, by PCI Express Base Specification 5.0, 7.7.8.3.
const (
	ACSSourceValidation ACSFlags = 1 << iota
	ACSTranslationBlocking
	ACSRequestRedirect
	ACSCompletionRedirect
	ACSUpstreamForwarding
	ACSEgressControl
	ACSDirectTranslated
)

// ReadConfig reads the configuration space of a device. It reads no more registers
// than it needs, each of which is a transaction on the bus. It may block when the
// device does not answer. A machine that does not show it: fs.ErrNotExist.
func ReadConfig(h *probe.Host, address string) (Config, error) {
	return probe.Once(h, "pciconfig "+address, func() (c Config, err error) {
		p := PCIDevices + "/" + address + "/config"
		if err := h.StuckAt(PCIDevices + "/" + address); err != nil {
			return c, err
		}
		if h.Word(PCIDevices+"/"+address, "power_state", &err) == "D3cold" { // switched off, and reading would wake it up
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

// What of the configuration space is read, by the same specification, 7.5 and 7.6.
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

// errConfig is that a configuration space is none.
var errConfig = errors.New("not a configuration space")

// parsePCIConfig walks the capabilities. What is beyond the end of what is shown is
// left out: whoever is not root sees the header only.
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

// find looks for the capability of PCI Express in the list that begins at; 0: it is
// not there. A list has no more entries than fit, so that one in a circle ends.
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

// acs looks for Access Control Services in the extended list. seen is false where
// that is not shown.
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
