package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A request can have a cniDir of its own. The daemon notes these directories next to its own one,
// so that the next daemon knows all records: it decides by them what nobody has any more.

// noteDir notes a directory of records, with the configuration of an ADD there, before the ADD
// records anything. The daemon's own directory needs no note.
func (d *service) noteDir(dir string, a addConfig) error {
	if dir == d.conf.stateDir {
		return nil
	}
	name := sha256.Sum256([]byte(dir))
	note := filepath.Join(d.conf.stateDir+".dirs", hex.EncodeToString(name[:]))
	if _, err := os.Lstat(note); err == nil {
		return nil
	}
	if err := a.saveAs(note); err != nil {
		return fmt.Errorf("noting the directory of records %s: %w", dir, err)
	}
	return nil
}

// loadDirs notes the directories that earlier daemons have noted, each with the configuration that
// was noted with it. d.unlisted says which of them are not known.
func (d *service) loadDirs() {
	list := d.conf.stateDir + ".dirs"
	files, err := os.ReadDir(list)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	errs := []error{err}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), ".") {
			continue // a temporary file
		}
		path := filepath.Join(list, file.Name())
		text, err := program.ReadFile(path)
		var a addConfig
		var dir string
		if err == nil {
			a, err = netconf.Decode[addConfig](text)
		}
		if err == nil {
			dir, err = multinet.StateDir(d.conf.root(), a.args().StdinData)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, which names a directory of records: %w", path, err))
			continue
		}
		d.configs.note(dir, a)
	}
	d.unlisted = errors.Join(errs...)
}

// records returns the records of all directories, in any state. The error names everything that
// cannot be read.
func (d *service) records(ctx context.Context) ([]program.Record, error) {
	all, err := program.All(ctx, d.configs.dirs()...)
	return all, errors.Join(d.unlisted, err)
}

// recorded lists the recorded attachments, and what is left of others, for residents. A record that
// cannot be read is an attachment without a network.
func (d *service) recorded(ctx context.Context) (all []delegate.Attached, err error) {
	for r, err := range program.Records(ctx, d.configs.dirs()...) {
		switch {
		case err == nil:
			all = append(append(all, r.Attached...), r.Leftovers...)
		case r.Key == (scratch.Key{}): // the directory
			return nil, err
		default:
			all = append(all, delegate.Attached{Attachment: delegate.Attachment{ContainerID: r.Key.ContainerID, IfName: r.Key.IfName}})
		}
	}
	return all, d.unlisted
}
