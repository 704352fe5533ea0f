package dra

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/metacni/metacni/internal/durable"
)

// A store keeps the claims that are prepared, one file each, so that a daemon finds them
// after a restart. The file POD_CLAIM, of the UIDs of the pod and the claim, has the SHA-256
// of the rest in its first line, and then JSON. Other files are ignored.
//
// Several processes may read a store. Only one may write to it at a time.
type store struct {
	dir string // made when the first claim is written; a missing one has no claims
}

// maxRecord is a limit for the size of a file: no claim has more than 32 devices, and each has
// 10 KiB of parameters at most.
const maxRecord = 1 << 20

// recordVersion is the version of the format.
const recordVersion = 2

// A record is the JSON in a file.
type record struct {
	Version int   `json:"version"`
	Claim   Claim `json:"claim"`
}

// Prepared returns the claims in a [Config.Dir] that are prepared for a pod, or for all pods
// if podUID is empty, and an error with CNI code 5 for each whose record is damaged. err is
// set if the directory cannot be read. No Driver need be started.
func Prepared(dir, podUID string) (claims []Claim, damaged []error, err error) {
	return store{dir}.read(func(r Ref) bool { return podUID == "" || r.Pod == podUID })
}

// pod returns the claims of a pod, in the order of their UIDs. There are none for an empty
// UID. It fails with CNI code 5 if the record of one of them is damaged; those of other pods
// do not matter.
func (s store) pod(uid string) ([]Claim, error) {
	if uid == "" {
		return nil, nil
	}
	claims, damaged, err := Prepared(s.dir, uid)
	return claims, errors.Join(append(damaged, err)...)
}

// all returns all claims whose records are not damaged, and an error with CNI code 5
// for each of the others. err is set if the directory cannot be read.
func (s store) all() (claims []Claim, damaged []error, err error) { return Prepared(s.dir, "") }

// read returns the claims of the wanted files.
func (s store) read(wanted func(Ref) bool) (claims []Claim, damaged []error, err error) {
	err = s.visit(func(dir *durable.Dir, names []string) error {
		for _, ref := range refs(names, wanted) {
			c, err := load(dir, ref)
			switch {
			case errors.Is(err, fs.ErrNotExist): // removed since
			case err != nil:
				damaged = append(damaged, ref.failure(fmt.Errorf("%w: %w", errDamaged, err)))
			default:
				claims = append(claims, c)
			}
		}
		return nil
	})
	return claims, damaged, err
}

// visit calls do with the directory and the names of its files, unless there is none.
func (s store) visit(do func(dir *durable.Dir, names []string) error) error {
	dir, err := durable.OpenDir(s.dir, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return err
	}
	return do(dir, names)
}

// refs returns what the names of files say, for the wanted ones.
func refs(names []string, wanted func(Ref) bool) []Ref {
	var all []Ref
	for _, name := range names {
		if ref, ok := refOf(name); ok && wanted(ref) {
			all = append(all, ref)
		}
	}
	return all
}

// fileName returns the name of the file of a claim.
func fileName(r Ref) string { return r.Pod + "_" + r.UID }

// refOf returns the UIDs in the name of a file. It reports false for files of others.
func refOf(name string) (Ref, bool) {
	pod, claim, _ := strings.Cut(name, "_")
	return Ref{UID: claim, Pod: pod}, isUID(pod) && isUID(claim)
}

func load(dir *durable.Dir, ref Ref) (Claim, error) {
	data, _, err := dir.ReadFile(fileName(ref), maxRecord)
	if err != nil {
		return Claim{}, err
	}
	r, err := decode(data)
	switch {
	case err != nil:
		return Claim{}, err
	case r.Version != recordVersion:
		return Claim{}, fmt.Errorf("format %d, this program knows %d", r.Version, recordVersion)
	case r.Claim.UID != ref.UID || r.Claim.Pod != ref.Pod:
		return Claim{}, errors.New("it is that of another claim")
	}
	for i := range r.Claim.Networks {
		if err := r.Claim.Networks[i].parse(r.Claim.Namespace); err != nil {
			return Claim{}, err
		}
	}
	return r.Claim, nil
}

func decode(data []byte) (record, error) {
	sum, text, _ := bytes.Cut(data, []byte("\n"))
	if string(sum) != checksum(text) {
		return record{}, errors.New("the checksum does not match")
	}
	var r record
	return r, json.Unmarshal(text, &r)
}

func encode(c Claim) ([]byte, error) {
	text, err := json.Marshal(record{recordVersion, c})
	return append([]byte(checksum(text)+"\n"), text...), err
}

func checksum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// get returns the claim that r names. It fails with CNI code 11 if there is none.
func (s store) get(r Ref) (Claim, error) {
	claims, damaged, err := s.read(func(other Ref) bool { return other.UID == r.UID && other.Pod == r.Pod })
	switch {
	case err != nil || damaged != nil:
		return Claim{}, errors.Join(append(damaged, err)...)
	case len(claims) == 0:
		return Claim{}, r.failure(errNotPrepared)
	}
	return claims[0], nil
}

// put writes the record of a claim, in place of an earlier one for the same pod. It survives a
// loss of power when put returns nil.
func (s store) put(c Claim) error {
	data, err := encode(c)
	if err != nil {
		return err
	}
	dir, err := durable.MakeDir(s.dir, nil)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.WriteFile(fileName(c.Ref), data)
}

// find returns who has prepared the claim of a UID, also of records that are damaged.
func (s store) find(uid string) (found []Ref, err error) {
	err = s.visit(func(_ *durable.Dir, names []string) error {
		found = refs(names, func(r Ref) bool { return r.UID == uid })
		return nil
	})
	return found, err
}

// remove removes the record of a claim, if there is one. After a loss of power the record may
// be there again.
func (s store) remove(r Ref) error {
	return s.visit(func(dir *durable.Dir, _ []string) error {
		if err := dir.Remove(fileName(r)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// clean removes the temporary files of crashes before a time. Nobody may be writing one of them.
func (s store) clean(before time.Time) error {
	return s.visit(func(dir *durable.Dir, names []string) error {
		var errs []error
		for _, name := range names {
			if !durable.IsTemp(name) {
				continue
			}
			info, err := dir.Stat(name)
			if err == nil && info.Changed.Before(before) {
				err = dir.Remove(name)
			}
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}
