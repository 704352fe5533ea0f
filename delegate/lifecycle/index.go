package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/records"
	"github.com/metacni/metacni/scratch"
)

// The index has the addresses of all records, so that a DEL on a node with many containers does
// not read every record. It only saves time: a record that was written since the index is read,
// and an index that is missing or damaged is made again. It is not synced.
const (
	indexName  = "@addresses"
	indexTemp  = durable.TempPrefix + indexName
	indexFrom  = 8 // records, without which there is no index
	indexFresh = 8 // records that are read although there is an index
)

// An indexed record has a line in the index.
type indexed struct {
	key     scratch.Key // as its file has it
	version string      // of the file

	// owned are its addresses, each after its network and with a tab at both sides, as
	// "\tnet1/10.0.0.2\t". A static one ends in "!".
	owned string
}

func (o owned) text() string {
	text := o.network + "/" + o.address.String()
	if o.static {
		text += "!"
	}
	return text
}

// has reports whether the address with this text is one of the record.
func (one indexed) has(text string) bool { return strings.Contains(one.owned, "\t"+text+"\t") }

// ownKey returns k as file names have it.
func ownKey(k scratch.Key) scratch.Key {
	k.ContainerID, k.Network = records.Part(k.ContainerID), records.Part(k.Network)
	return k
}

// readIndex reads the index in dir. It returns nil if there is none that can be used.
func readIndex(dir string) map[scratch.Key]indexed {
	text, err := os.ReadFile(filepath.Join(dir, indexName)) // in a directory that only root writes
	sum, body, ok := strings.Cut(string(text), "\n")
	if err != nil || !ok || sum != sumOf(body) {
		return nil
	}
	index := make(map[scratch.Key]indexed, strings.Count(body, "\n"))
	for line := range strings.Lines(body) {
		var one indexed
		rest := strings.TrimSuffix(line, "\n")
		for _, field := range []*string{&one.key.ContainerID, &one.key.Network, &one.key.IfName, &one.version} {
			*field, rest, _ = strings.Cut(rest, "\t")
		}
		one.owned = "\t" + rest
		index[one.key] = one
	}
	return index
}

// writeIndex writes the index in dir. It ignores errors, and so does a reader of what two writers
// at once may leave.
func writeIndex(dir string, all []indexed) {
	var body strings.Builder
	for _, one := range all {
		fmt.Fprintf(&body, "%s\t%s\t%s\t%s%s\n", one.key.ContainerID, one.key.Network, one.key.IfName, one.version, one.owned)
	}
	temp := filepath.Join(dir, indexTemp)
	if os.WriteFile(temp, []byte(sumOf(body.String())+"\n"+body.String()), 0o600) != nil || os.Rename(temp, filepath.Join(dir, indexName)) != nil {
		_ = os.Remove(temp)
	}
}

// tidyIndex removes the index when few records are left. Each operation that has removed a record
// calls it: the last of several finds few.
func (m *Manager) tidyIndex() {
	few := sync.OnceValue(func() bool { return fewRecords(m.Dir) })
	for _, name := range []string{indexName, indexTemp} {
		path := filepath.Join(m.Dir, name)
		if _, err := os.Lstat(path); err == nil && few() {
			_ = os.Remove(path) // it only saves time
		}
	}
}

// fewRecords reports whether dir has fewer records than it takes to have an index. It does not read
// the names of many.
func fewRecords(dir string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer d.Close()            //nolint:errcheck // opened to read
	const many = 4 * indexFrom // a container has a lock's file too
	names, err := d.Readdirnames(many)
	count := 0
	for _, name := range names {
		if strings.HasSuffix(name, records.RecordSuffix) {
			count++
		}
	}
	return (err == nil || errors.Is(err, io.EOF)) && len(names) < many && count < indexFrom
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
