package topo

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// maxDiscovered bounds what ibnetdiscover prints, bytes: a line of a fabric of 100,000 ports
// has some 150.
const maxDiscovered = 64 << 20

// Cabling returns the command that writes a site's list of switch ports.
func Cabling() *cobra.Command {
	return &cobra.Command{
		Use:   "cabling",
		Short: "Write the list of switch ports from ibnetdiscover -p",
		Long: `Reads the output of "ibnetdiscover -p" from standard input and writes a line for each
port of an adapter: its GUID and number, and the switch port at the other end.
Copy the list to all nodes as /etc/nhc/cabling: findings about a bad port then name
the switch port. Write it again after cables were moved.

Exit status: 0, 10 if the input has no port of an adapter.`,
		Example: `  ibnetdiscover -p | nhc-gpu cabling > cabling`,
		Args:    options.Takes(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			text, err := io.ReadAll(io.LimitReader(os.Stdin, maxDiscovered))
			if err != nil {
				return fmt.Errorf("cabling: %w", err)
			}
			list, ports := checks.Cabling(string(text))
			if ports == 0 {
				return errors.New(`cabling: no port of an adapter in the input: want the output of "ibnetdiscover -p"`)
			}
			fmt.Fprintf(console.Screen, "# GUID,PORT and the far end, from ibnetdiscover -p: %d ports\n%s", ports, list)
			return nil
		},
	}
}
