package topo

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// maxDiscovered bounds what ibnetdiscover prints, bytes: a line of a fabric of 100,000 ports
// has some 150.
const maxDiscovered = 64 << 20

// Cabling returns the command that makes a site's list of far ends.
func Cabling() *cobra.Command {
	return &cobra.Command{
		Use:   "cabling",
		Short: "Write the list of switch ports from ibnetdiscover -p",
		Long: `Reads from standard input what "ibnetdiscover -p" printed, and writes a line for each port of an
adapter: its GUID and number, and the switch port at the other end. Copied to
all nodes as /etc/nhc/cabling, findings about a bad port name the switch port.
Make it anew when cables were moved. Exit status is 1 if no port was found.`,
		Example: `  ibnetdiscover -p | nhc-gpu cabling > cabling`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := io.ReadAll(io.LimitReader(os.Stdin, maxDiscovered))
			if err != nil {
				return fmt.Errorf("cabling: %w", err)
			}
			list, ports := checks.Cabling(string(text))
			if ports == 0 {
				return errors.New(`cabling: no port of an adapter in the input: it must be what "ibnetdiscover -p" prints`)
			}
			fmt.Fprintf(console.Screen, "# GUID,PORT and the far end, from ibnetdiscover -p: %d ports\n%s", ports, list)
			return nil
		},
	}
}
