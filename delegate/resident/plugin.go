package resident

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/turns"
)

// A Resident is the plugin's side: it registers with a [Host] and serves its calls.
// It serves one host at a time. The fields must not change once it is in use; the
// methods are safe for concurrent use.
type Resident struct {
	Index string   // two digits: the place among residents
	Name  string   // letters, digits and _ . + -
	Types []string // the plugin types it serves

	// Plugin runs the commands, of all types. Commands run concurrently, but for
	// each container one at a time, whichever connection they came from.
	Plugin plugin.Plugin

	// System is what commands have of a process. Each call sets Stdin and
	// Stdout, and adds its CNI variables and those of a trace to Env.
	System plugin.System

	// Synchronize, when not nil, receives the current attachments of the
	// resident's types after each registration, before the first command. When
	// it fails, the registration fails.
	Synchronize func(ctx context.Context, known []Known) error

	// DrainTimeout is how long commands may go on after the context of Serve
	// has ended. Then their contexts end too. Zero means 5 seconds.
	DrainTimeout time.Duration

	// Logger receives panics, and at debug level why Run reconnects. Nil
	// discards them.
	Logger *slog.Logger

	turns   turns.Turns[struct{}]
	session atomic.Pointer[session] // the current one, or nil
}

func (p *Resident) info() Info {
	return Info{Index: p.Index, Name: p.Name, Types: p.Types}
}

func (p *Resident) logger() *slog.Logger { return cmp.Or(p.Logger, slog.New(slog.DiscardHandler)) }

// run runs a command.
func (p *Resident) run(ctx context.Context, c *command) ([]byte, error) {
	if !slices.Contains(p.Types, c.Type) {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "resident plugin "+p.info().String()+" does not serve this type", "")
	}
	if id := c.Env["CNI_CONTAINERID"]; id != "" {
		turn := p.turns.LineUp(id, struct{}{}, nil)
		defer turn.Leave()
		if err := turn.Wait(ctx); err != nil {
			return nil, err
		}
	}
	var stdout bytes.Buffer
	process := p.System
	process.Env = slices.Clone(process.Env)
	for _, k := range slices.Sorted(maps.Keys(c.Env)) {
		process.Env = append(process.Env, k+"="+c.Env[k])
	}
	process.Stdin, process.Stdout = bytes.NewReader(c.Config), &stdout
	err := p.Plugin.Run(ctx, process)
	if err == nil && stdout.Len() > maxOutput {
		err = types.NewError(types.ErrInternal, fmt.Sprintf("a result of %d bytes is longer than %d", stdout.Len(), maxOutput), "")
	}
	return stdout.Bytes(), err
}
