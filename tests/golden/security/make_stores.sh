#!/bin/sh
# Makes the key and trust stores in this folder, with the keytool of Java 17.
set -e
cd "$(dirname "$0")"
rm -f ./*.jks ./*.p12 ./*.jceks
make_key() { # file, form, alias, key password
    keytool -genkeypair -alias "$3" -keyalg EC -groupname secp256r1 -dname "CN=$3, O=kafkalite golden" -validity 36500 \
        -ext san=dns:"$3".example,ip:127.0.0.1 -storetype "$2" -keystore "$1" -storepass store-secret -keypass "$4"
}
make_key key.jks JKS first key-secret
make_key key.jks JKS second key-secret
make_key key.p12 PKCS12 first store-secret
keytool -exportcert -alias first -keystore key.jks -storepass store-secret -file first.der
keytool -exportcert -alias first -keystore key.p12 -storepass store-secret -file second.der
for form in JKS PKCS12; do
    file=trust.$([ $form = JKS ] && echo jks || echo p12)
    keytool -importcert -noprompt -alias one -file first.der -storetype $form -keystore "$file" -storepass store-secret
    keytool -importcert -noprompt -alias two -file second.der -storetype $form -keystore "$file" -storepass store-secret
done
keytool -genseckey -alias secret -keyalg AES -keysize 128 -storetype JCEKS -keystore other.jceks -storepass store-secret
rm first.der second.der
