package gateway

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"sandgate/store"
)

// LoadHostKey returns the host key in a file, and makes one when there is no
// file.
func LoadHostKey(file string) (signer ssh.Signer, made bool, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		data, err = makeHostKey(file)
		made = true
	}
	if err != nil {
		return nil, false, fmt.Errorf("host key: %w", err)
	}
	signer, err = ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, false, fmt.Errorf("host key %s: %w", file, err)
	}
	return signer, made, nil
}

// makeHostKey writes a new key so that the file is there whole or not at all.
func makeHostKey(file string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "sandgate host key")
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".hostkey-*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	data := pem.EncodeToMemory(block)
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	return data, os.Rename(f.Name(), file)
}

// A NoKeysError says where keys for the first admin were looked for in vain.
type NoKeysError struct{ Where string }

func (e *NoKeysError) Error() string { return "no public key found in " + e.Where }

// FirstAdmin makes the first user of a new gateway, an admin, with the keys in
// the file named, or else those in the folder sshDir: *.pub and authorized_keys.
// name is that of the person; one that cannot be a user's becomes admin. With
// users there already it does nothing: made is false. *NoKeysError if there is no
// key.
func FirstAdmin(ctx context.Context, db *store.DB, name, file, sshDir string) (user store.User, keys []store.Key, made bool, err error) {
	n, err := db.CountUsers(ctx)
	if err != nil || n > 0 {
		return store.User{}, nil, false, err
	}
	if file != "" {
		keys, err = readKeys(file)
	} else {
		keys, err = ownKeys(sshDir)
	}
	if err != nil {
		return store.User{}, nil, false, fmt.Errorf("admin keys: %w", err)
	}
	name = strings.ToLower(name)
	if !ValidName(name) || reserved[name] {
		name = "admin"
	}
	user, err = db.CreateUserWithKeys(ctx, name, "admin", keys)
	return user, keys, err == nil, err
}

// maxKeyFile bounds a file of keys.
const maxKeyFile = 1 << 20

// readKeys reads a file of public keys, one to a line, that someone has named: what
// is wrong with it is an error. *NoKeysError if there is none in it.
func readKeys(file string) ([]store.Key, error) {
	data, err := readKeyFile(file)
	if err != nil {
		return nil, err
	}
	var keys []store.Key
	for i, line := range bytes.Split(data, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		k, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		keys = appendKey(keys, k)
	}
	if len(keys) == 0 {
		return nil, &NoKeysError{Where: file}
	}
	return keys, nil
}

// ownKeys reads a person's keys. Lines that cannot be used are passed over.
func ownKeys(dir string) ([]store.Key, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.pub"))
	if err != nil {
		return nil, err
	}
	var keys []store.Key
	for _, file := range append(files, filepath.Join(dir, "authorized_keys")) {
		data, err := readKeyFile(file)
		if err != nil {
			continue
		}
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			if k, err := parseKey(line); err == nil {
				keys = appendKey(keys, k)
			}
		}
	}
	if len(keys) == 0 {
		return nil, &NoKeysError{Where: dir}
	}
	return keys, nil
}

func readKeyFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxKeyFile))
}

// parseKey parses one line as in authorized_keys. A line with options is refused:
// it grants less than a login, and must not become more.
func parseKey(line []byte) (store.Key, error) {
	key, comment, options, _, err := ssh.ParseAuthorizedKey(line)
	if err != nil {
		return store.Key{}, errors.New("not a public key")
	}
	if _, ok := key.(*ssh.Certificate); ok {
		return store.Key{}, errors.New("a certificate, not a public key")
	}
	if slices.Contains(options, verifyRequired) {
		return store.Key{}, errors.New("a key with the option verify-required, and this gateway cannot tell whether a PIN was entered")
	}
	if len(options) > 0 {
		return store.Key{}, errors.New("a key with options")
	}
	return store.Key{
		Fingerprint: ssh.FingerprintSHA256(key),
		Type:        key.Type(),
		Blob:        key.Marshal(),
		Name:        comment,
	}, nil
}

func appendKey(keys []store.Key, k store.Key) []store.Key {
	for _, other := range keys {
		if other.Fingerprint == k.Fingerprint {
			return keys
		}
	}
	return append(keys, k)
}
