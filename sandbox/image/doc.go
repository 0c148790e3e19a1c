// Package image fetches OCI images from registries and keeps them, extracted, for
// drivers that run sandboxes without an engine. What a driver mounts of them, and
// when, is its own matter.
//
// # Where images come from
//
// A reference is resolved as docker does: without a registry it is one of Docker
// Hub, without a tag the tag is latest. Credentials are those of the gateway's
// user, from the file that docker login writes, or from the credential helpers that
// it names. Of an image for many platforms the one for this host is taken. A
// registry on localhost, 127.0.0.1 or a private address may speak plain http, as
// docker allows it; one at a link-local address, where clouds keep their metadata,
// is never asked, whoever names it. What a reference meant when it was pulled it
// goes on to mean until nobody uses that image any more.
//
// # What is kept
//
// Images are a stranger's work. Manifest, configuration and every layer must have
// the digest that they were asked for by, and layers that of their uncompressed
// content too. Layers are extracted from the lowest upwards by the extractor, which
// bounds their size and number and which nothing leads out of the image's folder.
// Left out are devices and named pipes, of which a sandbox has its own, and extended
// attributes, so that a program's file capabilities are lost; what changes users by
// its mode works. Owners above 65535 become nobody.
//
// An image lies in a folder that is named after its digest and that is renamed to
// that name when it is whole: a crash leaves nothing half used. It is never changed
// afterwards, and removed when no sandbox is made of it.
//
// # Owners
//
// Only root can give files to others. Run by an ordinary user, the store keeps
// beside an image an archive of all that does not belong to the image's root, with
// its true owners, which gVisor reads into the writable layer of a new sandbox. That
// is little in most images. Where it is more than 256 MiB it is left to root, and
// the driver says so.
package image
